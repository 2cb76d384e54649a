"""Survey of what is intact in a log, and what is odd in it."""
