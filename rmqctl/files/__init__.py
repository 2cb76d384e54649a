"""The ground of all writing: files and folders made to last, the store's lock, stamps of files,
how full a disk is. Nothing here knows what is in a file.
"""
