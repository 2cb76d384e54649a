"""Queries of a store: by key, id, offset, time and condition.

They are answered from the files on disk, or as a broker would answer them.
"""
