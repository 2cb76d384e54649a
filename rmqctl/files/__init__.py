"""Low-level file operations: durable writes, the store's lock, file stamps, disk usage. Nothing
here interprets the content of a file.
"""
