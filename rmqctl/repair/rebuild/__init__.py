"""Consumequeues and index rebuilt from the log, and what that changes in a store."""
