"""Records traces of real programs for `outlive-bench gate`, and confirms what it predicts."""
