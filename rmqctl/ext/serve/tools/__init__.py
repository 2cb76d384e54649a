"""Handlers of requests from administration tools: `mqadmin` and the Dashboard."""
