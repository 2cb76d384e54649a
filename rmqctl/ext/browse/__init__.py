"""The terminal UI of ``rmqctl browse``. It shows stores, checks and exports, and parses nothing
itself.

Only the modules with widgets (`app`, `tree`, `widgets`, `questions`, `findings`) import textual.
All reads run in threads; a read stops when its ``watch`` callback raises `listing.ReadCancelled`.
"""
