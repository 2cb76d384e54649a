"""The fast reader: commitlog frames as columns, CRC, resync after damage.

`walk.walk` is the only primitive that cuts a log into frames; read, verify, stats and all other
readers of a log consume its batches.
"""
