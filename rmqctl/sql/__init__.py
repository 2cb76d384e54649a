"""Reading of a store's tables as Arrow record batches, and SQL queries on these tables by DuckDB.

* `options` and `schema` describe a read.
* `planning` cuts files into partitions; `seams` finds the start of a partition's first frame.
* `reader` returns the rows of a partition.
* `session` runs DuckDB in this process; `interrupting` lets a signal stop a query.

The data source of Spark (`rmqctl.ext.spark`) uses the same modules.
"""
