"""as_broker."""
