"""A log that ends earlier, and everything derived from it cut to that end."""
