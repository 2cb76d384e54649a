"""Consumers: pulling, groups and their positions, what is sent back."""
