"""tiered verify: check the commit logs, consume queues, index files and metadata of a tier. Compare
them with each other and with the local store.
"""
