"""How the program is put together: commands found by name and imported when they run, their options
spelled out for typer, help, and the end of a run. Most of it goes around typer to start fast.
"""
