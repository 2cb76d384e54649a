"""The data source ``rocketmq``: the tables of stores for Spark, read where they lie.

`source.RocketMQ` is what Spark registers, `options` and `schema` what it may be asked. `planning`
cuts files into partitions, `reader` gives their rows, `seams` says where a partition's first frame
starts, `tiered` does both for tiers. `stream` follows stores; `write` makes one of a DataFrame.
"""
