"""Consumer groups: the messages that a group has not consumed, has sent back, or gave up on."""
