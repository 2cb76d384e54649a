"""Change consumer offsets: reset them, copy them from another group, or import them."""
