"""Dispatch (a broker's reput): the entries that the log's records get in consume queues and index.

`reput.Dispatcher` is the entry point; each other module writes one structure.
"""
