"""Access to the files of a tier (in a folder or at a URL) by path below the tier's root, and to the
tier's metadata and settings.
"""
