"""The tables of stores as Arrow record batches, and SQL over them in this process by DuckDB.

`options` and `schema` are what may be asked for, `planning` cuts files into partitions, `reader`
gives their rows, `seams` says where a partition's first frame starts, `session` asks DuckDB, and
`interrupting` lets a signal end what it computes. The data source of Spark (`rmqctl.ext.spark`)
reads the same tables.
"""
