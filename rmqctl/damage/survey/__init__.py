"""What of a log is intact, and what is odd in it."""
