"""What a broker of a release makes of its ``broker.conf``, and what it opens then."""
