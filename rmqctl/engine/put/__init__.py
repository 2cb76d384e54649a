"""Turn messages into records in the log: admission, rewriting, encoding, queue offsets."""
