"""What lies where a walk found no record: where damage ends, and what after it is of the log."""
