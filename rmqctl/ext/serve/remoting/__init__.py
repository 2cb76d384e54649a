"""RocketMQ's remoting protocol: frames, commands, and the table of requests.

The modules convert bytes to commands and back, and use no stores. Only `client`, a small client,
uses sockets.
"""
