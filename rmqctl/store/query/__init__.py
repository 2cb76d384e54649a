"""Queries of a store: by key, id, offset, time and condition.

They return what is on disk, or what a broker would return.
"""
