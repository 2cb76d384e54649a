"""Queries of a store: by key, id, offset, time and condition.

Results come from the files on disk, or are those that a broker would return.
"""
