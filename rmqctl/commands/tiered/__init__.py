"""``rmqctl tiered``: the commands for what a broker moved to tiered storage."""
