"""The gRPC service for RocketMQ 5 clients, like a RocketMQ proxy, for the same brokers."""
