"""What several commands share: groups of options, and how plans, messages, figures and verdicts are
shown.
"""
