"""tiered."""
