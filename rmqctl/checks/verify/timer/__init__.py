"""Timer log, wheel and checkpoint, compared with each other and the commitlog."""
