"""Handlers of requests from `mqadmin` and the Dashboard."""
