"""Consumer groups: what they have not consumed, sent back and gave up."""
