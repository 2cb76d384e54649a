"""``rmqctl delete``: erases messages, with all copies; deletes topics and groups."""
