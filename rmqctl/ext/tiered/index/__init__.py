"""The index files of a tier: read in every form, written, rearranged and uploaded."""
