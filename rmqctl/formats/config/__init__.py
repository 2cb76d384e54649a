"""Configuration files as a broker writes them.

The text of fastjson, the order of Java's maps, epoch files, the identity of the controller mode.
"""
