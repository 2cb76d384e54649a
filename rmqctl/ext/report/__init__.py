"""One HTML file that tells of a store, for people to pass on: what other commands compute.

A view over `rmqctl.checks` and `rmqctl.store`, written by `rmqctl report`. What is shown is
gathered as plain values (`facts`), worded (`words`), drawn (`drawing`) and laid out (`page`);
nothing is judged here.
"""
