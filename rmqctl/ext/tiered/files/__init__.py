"""Access to the files of a tier, in a folder or at a URL, and to the tier's metadata and settings.
Paths are relative to the tier's root.
"""
