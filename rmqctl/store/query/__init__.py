"""Questions to a store: by key, id, offset, time and condition.

Answered by what lies on disk, or as a broker would.
"""
