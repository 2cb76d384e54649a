"""An HTML report on a store in one file, from the results of other commands.

A view over `rmqctl.checks` and `rmqctl.store`, written by `rmqctl report`. What is shown is
gathered as plain values (`facts`), worded (`words`), drawn (`drawing`) and laid out (`page`);
nothing is judged here.
"""
