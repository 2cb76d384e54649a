"""What message bodies hold: serialisations without a library, and what RocketMQ itself writes."""
