"""Configuration files as a broker writes them.

JSON as fastjson writes it, the order of Java's maps, epoch files, and the broker identity of the
controller mode.
"""
