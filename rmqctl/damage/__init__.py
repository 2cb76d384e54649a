"""Judge damage: classify each damaged position of a log, list the evidence, choose the action."""
