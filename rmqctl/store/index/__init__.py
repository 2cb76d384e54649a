"""The index files of a store: shapes, entries, look-ups."""
