"""Consumequeues and index of many stores, made anew on any pool, published as repairs are."""
