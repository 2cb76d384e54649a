"""Parts that several commands share: option groups, and output of plans, messages, figures and
verdicts.
"""
