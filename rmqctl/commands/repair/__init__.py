"""The commands that repair a store, or take something out of it."""
