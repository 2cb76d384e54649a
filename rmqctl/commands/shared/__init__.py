"""Shared parts of commands: option groups, and output of plans, messages, figures and verdicts."""
