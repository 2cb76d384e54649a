"""A damaged log: what is intact, what is lost, and fillers in the place of damage."""
