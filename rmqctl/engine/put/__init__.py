"""Messages to records in the log: admission, rewriting, encoding, queue offsets."""
