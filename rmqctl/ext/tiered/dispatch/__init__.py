"""Upload messages of a local store to a tier as a broker does, one window of the log at a time.
Complete the uploads of a killed run.
"""
