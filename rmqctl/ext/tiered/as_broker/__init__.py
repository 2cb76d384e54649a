"""Answer queries as a 5.3.3 broker with tiered storage does: from the tier alone, or from the local
store and the tier.
"""
