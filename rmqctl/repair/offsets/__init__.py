"""Changes of consumer offsets: reset, copied from another group, or imported."""
