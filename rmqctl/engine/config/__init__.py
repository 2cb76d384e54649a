"""Settings of an engine, making a new store, and its topics."""
