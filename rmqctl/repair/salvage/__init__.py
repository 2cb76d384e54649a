"""Repair a damaged log: find what is intact and what is lost, and write fillers over the damage."""
