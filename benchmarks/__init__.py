"""Bench stores, the peers they are read with, and the measurements of rmqctl against them."""
