"""Consumers: pulling, groups, consumer offsets, and messages sent back."""
