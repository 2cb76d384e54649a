"""The data source ``rocketmq``: the tables of stores for Spark, read where they lie.

`source.RocketMQ` is what Spark registers. `planning` cuts files into partitions, `seams` says
where a partition's first frame starts, `reader` gives its rows.
"""
