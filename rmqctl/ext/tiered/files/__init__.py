"""The files of a tier, by path below its root: read and written in a folder or behind a URL; and
where its metadata and its settings lie.
"""
