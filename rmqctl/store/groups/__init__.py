"""Consumer groups: the messages that a group has not consumed, has sent back or has given up on."""
