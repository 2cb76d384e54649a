"""Reading of a store's tables as Arrow record batches, and SQL queries on these tables by DuckDB.

`options` and `schema` describe a read, `planning` cuts files into partitions, `reader` returns the
rows of a partition, `seams` finds the start of a partition's first frame, `session` runs DuckDB in
this process, and `interrupting` lets a signal stop a query. The data source of Spark
(`rmqctl.ext.spark`) uses the same modules.
"""
