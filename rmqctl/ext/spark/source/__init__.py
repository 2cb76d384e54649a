"""The data source ``rocketmq``: the tables of stores for Spark, read in place.

Spark registers `source.RocketMQ`. The tables and their rows are those of `rmqctl.sql`; `tiered`
reads those of tiers. `stream` follows stores; `write` creates a store from a DataFrame.
"""
