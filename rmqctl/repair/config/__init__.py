"""Restore of configuration files that are missing or unreadable, as far as evidence allows."""
