"""Dispatch (a broker's reput): write the consume queue and index entries of the log's records.

`reput.Dispatcher` is the entry point. Each of the other modules writes one structure.
"""
