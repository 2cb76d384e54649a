"""What lies where a walk found no record: where damage ends, and what behind it is of the log."""
