"""Creation of a store, and its topics and consumer groups."""
