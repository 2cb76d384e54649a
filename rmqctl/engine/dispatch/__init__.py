"""Dispatch (a broker's reput): what the log's records lead to in consumequeues and index.

`reput.Dispatcher` is the way in; the other modules each write one structure.
"""
