"""tiered verify: every check of a tier, its commit logs, consume queues, index files and metadata,
each held against the others and against the local store.
"""
