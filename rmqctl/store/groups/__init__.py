"""Consumer groups: messages that a group has not consumed, has sent back, or gave up."""
