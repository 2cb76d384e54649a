"""What a broker's start would do to a store, predicted without doing it.

Load, recovery, queues, index, and the messages it would lose.
"""
