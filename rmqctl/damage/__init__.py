"""Judge damage: what a place of a log is, what speaks for it, and what a repair does with it."""
