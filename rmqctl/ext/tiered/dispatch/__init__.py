"""Uploads what a local store has to a tier, in windows of its log, as a broker does; completes what
a killed run left.
"""
