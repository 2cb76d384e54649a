"""Producers: messages taken through the engine into a store that is open for writing."""
