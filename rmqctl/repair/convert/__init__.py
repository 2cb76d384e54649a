"""Stores in another layout: other consumequeues in place, or a new store (docs/layouts.md)."""
