"""``rmqctl delete``: erase messages, including all copies; delete topics and groups."""
