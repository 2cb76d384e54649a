"""Bytes <-> records: every on-disk layout of a RocketMQ store, declared once in construct.

This package does no I/O, prints nothing and reads no clock. Each on-disk format has one module. For
the fast readers, `layout` derives offsets, numpy dtypes and struct formats from the declarations.
"""
