"""Timer log, wheel and checkpoint against each other and the commitlog."""
