"""The frame of the program: lookup and import of commands, their options for typer, help, and the
end of a run. Most runs bypass typer's slow parts, so that the program starts fast.
"""
