"""The pass over the log, split into ranges, and the findings about the log itself."""
