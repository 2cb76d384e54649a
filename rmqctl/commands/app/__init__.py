"""The frame of the program: lookup and import of commands, their options for typer, help, and the
end of a run. Most of it bypasses typer for a fast start.
"""
