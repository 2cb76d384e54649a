"""``rmqctl pipeline``: the commands for many stores, on processes of this machine or on Spark."""
