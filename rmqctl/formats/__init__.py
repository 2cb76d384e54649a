"""Bytes <-> records: every on-disk layout of a RocketMQ store, declared once in construct.

This package has no I/O, no printing and no clock. Each on-disk format has one file; `layout`
derives offsets, numpy dtypes and struct formats for the fast readers from the same declarations.
"""
