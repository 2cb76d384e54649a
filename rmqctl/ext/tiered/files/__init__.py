"""The files of a tier, by path below its root, in a folder or at a URL; its metadata and
settings.
"""
