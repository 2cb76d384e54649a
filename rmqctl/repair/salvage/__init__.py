"""salvage."""
