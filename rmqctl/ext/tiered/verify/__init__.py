"""tiered verify: check the commit logs, consume queues, index files and metadata of a tier, and
compare them with each other and with the local store.
"""
