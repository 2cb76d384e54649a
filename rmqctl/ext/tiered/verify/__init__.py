"""tiered verify: every check of a tier, its commit logs, consume queues, index files and metadata,
each compared with the others and against the local store.
"""
