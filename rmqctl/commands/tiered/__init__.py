"""``rmqctl tiered``: commands for tiered storage."""
