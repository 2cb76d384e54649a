"""The HTML report on a store: one file, built from the results of other commands.

`rmqctl report` writes it. `facts` gathers plain values. `words` turns them into sentences, and
`drawing` into charts. `page` lays them out. Findings and verdicts come from `rmqctl.checks`.
"""
