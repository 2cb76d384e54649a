"""The index files of a store: their shapes, their entries, look-ups in them."""
