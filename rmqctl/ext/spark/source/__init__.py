"""The Spark data source ``rocketmq``, which reads the tables of stores in place.

Spark registers `source.RocketMQ`. `rmqctl.sql` defines the tables and their rows. `tiered` reads
the tables of tiers, `stream` follows growing stores, and `write` creates a store from a DataFrame.
"""
