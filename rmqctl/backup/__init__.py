"""Backups: copy a store, even while a broker uses it; add new data with each run; restore the
store.
"""
