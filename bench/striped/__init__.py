"""The experiment of the paper on striped checkpointing, with outlive: see `main`."""
