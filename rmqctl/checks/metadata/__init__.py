"""Topics, consumer groups and committed offsets that a broker loses, or has lost."""
