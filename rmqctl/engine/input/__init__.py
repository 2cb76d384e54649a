"""Reads messages from text or JSON objects, and appends them (`append`)."""
