"""The fast reader: commitlog frames as columns, CRC, resync after damage.

`walk.walk` is the one primitive that cuts a log into frames; everything that goes over a log
(read, verify, stats, …) consumes its batches.
"""
