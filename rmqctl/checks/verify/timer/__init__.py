"""Checks of the timer log, timer wheel and timercheck against each other and the commitlog."""
