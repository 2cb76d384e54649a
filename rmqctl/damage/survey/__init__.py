"""Survey of a log: what is intact, and which anomalies exist."""
