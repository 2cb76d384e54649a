"""Reads of a store's tables as Arrow record batches, and SQL on these tables by DuckDB in this
process.

`options` and `schema` describe a read, `planning` cuts files into partitions, `reader` returns the
rows of a partition, `seams` finds the start of a partition's first frame, `session` runs DuckDB,
and `interrupting` lets a signal stop a query. The data source of Spark (`rmqctl.ext.spark`) uses
the same modules.
"""
