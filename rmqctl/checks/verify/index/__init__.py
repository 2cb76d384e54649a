"""The index against the keys of the log, and each index file by itself."""
