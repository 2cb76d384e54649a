"""The commands that judge a store, and change nothing."""
