"""The pass over the log, in ranges, and the findings about the log itself."""
