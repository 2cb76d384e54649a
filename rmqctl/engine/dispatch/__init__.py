"""Dispatch (a broker's reput): write consume queue and index entries for the log's records.

`reput.Dispatcher` is the entry point; each of the other modules writes one structure.
"""
