"""Queries over views of stores: which columns a query needs, and what its rows look like."""
