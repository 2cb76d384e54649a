"""The one executor of all plans: staging, journal, steps, undo."""
