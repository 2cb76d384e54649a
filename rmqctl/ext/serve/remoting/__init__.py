"""RocketMQ's remoting protocol: frames, commands, and the table of requests.

The modules convert bytes to commands and back; they use no stores. Only the small client in
`client` uses sockets.
"""
