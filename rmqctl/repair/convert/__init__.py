"""Stores in another layout: other consumequeues in place, or a new store.

Layouts: docs/explanation/layouts.md.
"""
