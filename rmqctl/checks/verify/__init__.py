"""`verify`: checks of everything in a store that can be checked.

It consists of a pass over the log, an explanation of the entries that match no message, and a check
of each small structure.
"""
