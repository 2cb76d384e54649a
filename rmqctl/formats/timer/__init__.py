"""Timer log, timer wheel and timer checkpoint of 5.x."""
