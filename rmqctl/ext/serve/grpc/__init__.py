"""The gRPC service for RocketMQ 5 clients, as a proxy offers it, over the same brokers."""
