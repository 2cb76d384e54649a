"""The small files of a store's own state, and where what is replaced goes."""
