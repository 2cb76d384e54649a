"""Lets Spark find the data source ``rocketmq`` by itself: it looks into packages of such names."""

from rmqctl.ext.spark.source.source import RocketMQ as DefaultSource

__all__ = ["DefaultSource"]
