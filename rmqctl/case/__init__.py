"""Evidence folders.

An evidence folder describes a store, a file or a disk image. It contains the commands that
determined its contents, and checksums. The checksums prove that nothing has changed since.
"""
