"""Rebuild consume queues and index of stores on any pool of workers, and publish them like other
repairs.
"""
