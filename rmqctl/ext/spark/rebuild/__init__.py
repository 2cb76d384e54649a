"""Rebuild consume queues and index of a store on a pool of workers; the result is published like
that of other repairs.
"""
