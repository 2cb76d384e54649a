"""The tables of stores as Arrow record batches, and SQL over them in this process by DuckDB.

`options` and `schema` describe a read, `planning` cuts files into partitions, `reader` returns
their rows, `seams` finds the start of a partition's first frame, `session` runs DuckDB, and
`interrupting` lets a signal stop it. The data source of Spark (`rmqctl.ext.spark`) reads the same
tables.
"""
