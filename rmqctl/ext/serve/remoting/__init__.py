"""RocketMQ's remoting protocol: frames, commands, and the table of what may be asked.

Bytes to commands and back. No sockets but for the small client in `client`, nothing of stores.
"""
