"""The data source ``rocketmq``: the tables of stores for Spark, read where they are.

`source.RocketMQ` is what Spark registers. The tables and their rows are those of `rmqctl.sql`;
`tiered` has those of tiers. `stream` follows stores; `write` makes one of a DataFrame.
"""
