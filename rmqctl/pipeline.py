"""The data source ``rocketmq`` for programs: ``rmqctl.pipeline.register(spark)``."""

from rmqctl.ext.spark import register

__all__ = ["register"]
