"""truncate."""
