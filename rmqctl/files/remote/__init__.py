"""Files at a URL, through fsspec."""
