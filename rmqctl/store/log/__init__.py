"""The commitlog: records by physical offset, its end, its ranges for several threads.

Also the newest messages, and following a growing log.
"""
