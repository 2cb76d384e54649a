"""Clients of RocketMQ 5: the service that a proxy offers them, over the same brokers."""
