"""`diff`: two stores compared message by message, by log or by queue."""
