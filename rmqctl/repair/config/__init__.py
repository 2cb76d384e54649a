"""Configuration files that are gone or unreadable: made whole again, as far as anything tells."""
