"""RocksDB databases of a 5.x store, opened without changing them, and their contents."""
