"""RocketMQ's remoting protocol: frames, commands, and the table of requests.

Converts bytes to commands and back. Only the small client in `client` uses sockets; no module here
uses stores.
"""
