"""Bench stores, peers to compare with, and measurements of rmqctl."""
