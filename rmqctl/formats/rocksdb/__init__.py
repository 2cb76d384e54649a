"""Keys and values of the RocksDB databases of a 5.x store. Pure functions on bytes."""
