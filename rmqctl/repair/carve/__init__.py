"""carve."""
