"""Read, write, compact and upload the index files of a tier, in all their forms."""
