"""Consume queues compared with the messages of the log, both ways; extension and batch queues."""
