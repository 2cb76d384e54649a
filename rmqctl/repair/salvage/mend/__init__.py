"""Damaged records brought back whole, and what no broker can have written corrected."""
