"""The commitlog: records by physical offset, the end of the log, ranges for several threads.

Also reading the newest messages and following a growing log.
"""
