"""Restore missing or unreadable configuration files, as far as the store contains
evidence of them.
"""
