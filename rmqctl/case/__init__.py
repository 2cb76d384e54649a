"""An evidence folder: the contents of a store, a file or an image, how they were determined, and
sums that prove that nothing has changed.
"""
