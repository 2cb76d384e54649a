"""Commands that repair a store or remove parts of it."""
