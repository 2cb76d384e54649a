"""An evidence folder: what a store, a file or an image contains, how that was found out, and sums
that prove that nothing of it changed.
"""
