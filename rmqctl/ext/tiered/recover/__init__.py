"""A broker's part of a tier recovered from its own files: a plan for the executor of repairs."""
