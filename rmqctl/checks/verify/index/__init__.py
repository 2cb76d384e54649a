"""The index compared with the keys of the log, and each index file by itself."""
