"""The commitlog: records by physical offset, the end of the log, and ranges for several threads.

This package also reads the newest messages and follows a growing log.
"""
