"""`diff`: compare two stores message by message, by log or by queue."""
