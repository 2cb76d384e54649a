"""Topics, consumer groups and committed offsets: what a broker loses of them, or has lost."""
