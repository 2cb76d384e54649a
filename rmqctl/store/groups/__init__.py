"""Consumer groups: messages that they have not consumed, sent back or gave up."""
