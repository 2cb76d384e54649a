"""expire."""
