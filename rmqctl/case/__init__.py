"""Evidence folders: the contents of a store, a file or a disk image, the commands that determined
these contents, and checksums that prove that nothing has changed since.
"""
