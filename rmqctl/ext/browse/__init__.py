"""The screen of ``rmqctl browse``: a view over store, checks and exports, no reader of its own.

Only the modules with widgets (`app`, `tree`, `widgets`, `questions`, `findings`) import textual.
All that reads is called in threads and stops when its ``watch`` raises `listing.Stopped`.
"""
