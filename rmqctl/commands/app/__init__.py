"""The frame of the program: commands that are found by name and imported when they run, their
options for typer, help, and the end of a run. Most of it bypasses typer for a fast start.
"""
