"""Evidence folders: the contents of a store, a file or an image, how they were determined, and
checksums that prove that nothing has changed.
"""
