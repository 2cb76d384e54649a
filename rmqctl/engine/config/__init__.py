"""Creation of a store, and of its topics and consumer groups."""
