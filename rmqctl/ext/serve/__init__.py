"""The server behind ``rmqctl serve``: name server and brokers over store directories.

`server` has the sockets, `dispatch` finds the handler of each code, `broker` is one store as a
broker. Handlers are functions in a table of their module, in the rooms `consuming`, `producing` and
`tools`; none of them writes to a socket or waits.
"""
