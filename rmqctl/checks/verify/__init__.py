"""`verify`: everything of a store that can be checked.

One pass over the log, an explanation of what is left over, and a check for each small structure.
"""
