"""The Spark data source ``rocketmq``, which reads the tables of stores in place.

Spark registers `source.RocketMQ`. The tables and their rows are those of `rmqctl.sql`; `tiered`
reads the tables of tiers. `stream` follows growing stores; `write` creates a store from a
DataFrame.
"""
