"""Requests of `mqadmin` and the Dashboard."""
