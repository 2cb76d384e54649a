"""Consumequeues, plain, batch and compacted, and the runs of rows that readers make of them."""
