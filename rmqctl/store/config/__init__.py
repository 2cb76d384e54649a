"""Configuration files of a store, read tolerantly.

Which copy counts; topics and groups as rows; consumer offsets and their lag.
"""
