"""The HTML report on a store: one file, built from the results of other commands.

A view over `rmqctl.checks` and `rmqctl.store`, written by `rmqctl report`. `facts` gathers plain
values, `words` turns them into sentences, `drawing` into charts, and `page` lays them out. Findings
and verdicts come from the checks.
"""
