"""Tiered storage: names, units, index files and metadata, of 5.1.0 to 5.3.3."""
