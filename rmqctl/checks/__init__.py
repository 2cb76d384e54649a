"""Checks: verify, diff and preflight, as generators of findings over a store."""
