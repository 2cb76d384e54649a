"""recover."""
