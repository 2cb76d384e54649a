"""From a message to its record in the log: admission, rewriting, encoding, queue offsets."""
