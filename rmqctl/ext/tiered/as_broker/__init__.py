"""What a broker with tiered storage answers: a pull from the tier alone, or from its local store
and the tier together, by the rules of 5.3.3.
"""
