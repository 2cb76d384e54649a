"""Append to the commitlog: write its files, continue in the next file, and flush to disk."""
