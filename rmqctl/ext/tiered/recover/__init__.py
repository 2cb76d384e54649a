"""Plan the recovery of a broker's part of a tier from its own files."""
