"""Code that several commands share: option groups; output of plans, messages and verdicts."""
