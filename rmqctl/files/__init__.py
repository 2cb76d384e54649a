"""The base of all writing: durable files and folders, the store's lock, stamps of files, disk
usage. Nothing here interprets the content of a file.
"""
