"""The server of ``rmqctl serve``: a name server and brokers that serve store directories.

`server` owns the sockets, `dispatch` finds the handler of each request code, and `broker` serves
one store as a broker. Handlers are functions, registered in a table of their module, in the
packages `consuming`, `producing` and `tools`; no handler writes to a socket or blocks.
"""
