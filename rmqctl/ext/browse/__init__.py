"""The screen of ``rmqctl browse``: a view over store, checks and exports, without a reader of its
own.

Only the modules with widgets (`app`, `tree`, `widgets`, `questions`, `findings`) import textual.
All reading is done in threads, and stops when its ``watch`` raises `listing.Stopped`.
"""
