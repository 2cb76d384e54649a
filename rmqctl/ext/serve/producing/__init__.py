"""Producers: messages that the engine stores in a writable store."""
