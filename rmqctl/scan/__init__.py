"""The fast reader: commitlog frames as columns, CRC, resync after damage.

`walk.walk` is the only primitive that cuts a log into frames; all readers of a log (read, verify,
stats, …) consume its batches.
"""
