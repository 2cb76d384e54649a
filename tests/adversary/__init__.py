"""Stores made by an attacker, or by bad luck: what no verdict may be fooled by.

`writer` makes whole stores from the format pages alone, so that a mistake of rmqctl's own reading
and writing cannot hide in them.
"""
