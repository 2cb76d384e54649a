"""Conversion of stores to other layouts: other consume queues in place, or a new store.

Layouts: docs/explanation/layouts.md.
"""
