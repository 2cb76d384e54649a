"""The gRPC service for RocketMQ 5 clients, as a RocketMQ proxy offers it."""
