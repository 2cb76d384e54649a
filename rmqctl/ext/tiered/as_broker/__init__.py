"""A broker's answers from tiered storage by the rules of 5.3.3: pulls from the tier alone, or from
the local store and the tier together.
"""
