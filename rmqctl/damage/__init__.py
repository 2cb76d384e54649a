"""Analysis of damage: classifies each damaged position of a log, lists the evidence, and chooses
the action of a repair.
"""
