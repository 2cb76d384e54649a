"""An HTML report on a store in one file, from the results of other commands.

A view over `rmqctl.checks` and `rmqctl.store`, written by `rmqctl report`. `facts` gathers plain
values, `words` puts them into sentences, `drawing` into charts, and `page` lays them out. Nothing
is judged here.
"""
