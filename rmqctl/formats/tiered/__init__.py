"""Tiered storage of 5.1.0 to 5.3.3: names, units, index files and metadata."""
