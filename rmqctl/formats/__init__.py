"""Bytes <-> records: every on-disk layout of a RocketMQ store, declared once in construct.

No I/O, no printing and no clock lives here. One file per on-disk format; `layout` derives
what the fast readers need (offsets, numpy dtypes, struct formats) from the same declarations.
"""
