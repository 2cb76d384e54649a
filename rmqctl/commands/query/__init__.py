"""``rmqctl query``: single messages by key, id, time or physical offset."""
