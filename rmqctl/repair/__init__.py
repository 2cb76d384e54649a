"""Plans that change a store (recover, salvage, truncate, expire, carve), and how they are applied
and undone.
"""
