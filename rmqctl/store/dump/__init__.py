"""dump."""
