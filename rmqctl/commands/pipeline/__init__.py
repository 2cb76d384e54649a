"""``rmqctl pipeline``: commands for many stores, on threads of one process or on Spark."""
