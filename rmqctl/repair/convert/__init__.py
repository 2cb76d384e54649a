"""Convert stores to other layouts: convert the consume queues in place, or create a new store.

Layouts: docs/explanation/layouts.md.
"""
