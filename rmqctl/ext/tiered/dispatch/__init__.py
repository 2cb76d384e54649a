"""Upload messages of a local store to a tier as a broker does, in windows of its log, and complete
uploads of a killed run.
"""
