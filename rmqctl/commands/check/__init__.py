"""Commands that check a store without changing it."""
