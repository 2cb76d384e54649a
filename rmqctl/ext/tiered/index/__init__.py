"""Index files of a tier: read in every form, written, compacted and uploaded."""
