"""RocksDB data bases of a 5.x store: opened without touching them, and what lies in them."""
