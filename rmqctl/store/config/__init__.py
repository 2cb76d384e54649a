"""Configuration files of a store, read tolerantly.

The copy that a broker loads; topics and groups as rows; consumer offsets and lag.
"""
