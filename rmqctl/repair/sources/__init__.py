"""Sources of `recover --from`, from which lost bytes are restored: stores, log files, saved
messages.
"""
