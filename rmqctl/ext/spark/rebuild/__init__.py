"""Rebuild the consume queues and the index of a store on a pool of workers.

The result is published like the result of other repairs.
"""
