"""Topics, consumer groups and committed offsets that a startup loses or that are already lost."""
