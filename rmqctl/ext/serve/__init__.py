"""The server of ``rmqctl serve``: a name server, and a broker for each store directory.

`server` owns the sockets, `dispatch` finds the handler of each request code, and `broker` serves
one store as a broker. Handlers are functions in the packages `consuming`, `producing` and `tools`;
each of their modules has a table of its handlers. A handler never blocks or writes to a socket.
"""
