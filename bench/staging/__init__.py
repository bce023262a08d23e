"""Storage nodes on slow disks, as the paper on staging I/O measures its own: see `main`."""
