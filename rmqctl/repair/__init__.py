"""Plans and their application: recover, salvage, truncate, expire, carve, undo."""
