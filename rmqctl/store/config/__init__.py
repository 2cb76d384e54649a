"""Configuration files of a store, read tolerantly.

Finds the copy that a broker loads, returns topics and groups as rows, and computes consumer offsets
and lag.
"""
