"""Keys and values of a broker's RocksDB data bases (spec: rocksdb.md)."""
