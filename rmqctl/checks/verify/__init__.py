"""`verify`: checks of everything in a store that can be checked.

One pass over the log, an explanation of left-over entries, and a check of each small structure.
"""
