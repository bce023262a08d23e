"""Parts that the adapters for training frameworks share."""
