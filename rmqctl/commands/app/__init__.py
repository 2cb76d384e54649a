"""Command-line infrastructure: finding and importing commands, declaring their options to typer,
help, and the exit of the process. Most runs bypass typer's slow parts, so rmqctl starts fast.
"""
