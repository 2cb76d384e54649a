"""Command-line infrastructure: import of commands, declaration of options, help, and exit codes.

Most runs bypass typer's slow parts, so rmqctl starts fast.
"""
