"""Keys and values of the RocksDB data bases of a 5.x store. Pure functions on bytes."""
