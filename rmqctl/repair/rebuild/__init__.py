"""Consumequeues and index made anew from the log, and what that changes in a store."""
