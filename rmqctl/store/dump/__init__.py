"""`dump`: any file of a store or tier, field by field with offsets, damaged or not."""
