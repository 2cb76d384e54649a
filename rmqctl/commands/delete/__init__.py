"""``rmqctl delete``: erase messages with all copies; delete topics and groups."""
