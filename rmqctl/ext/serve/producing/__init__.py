"""Producers: messages that clients send, stored in a writable store by the engine."""
