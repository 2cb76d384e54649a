"""`verify`: check everything in a store that can be checked.

A run has three parts: a pass over the log, an explanation of the entries that match no message, and
a check of each small structure.
"""
