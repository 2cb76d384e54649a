"""Extensions: what most people who look at a store, or repair one, never need.

The core imports none of them. A command imports its extension when it runs; where the folder of
one is missing, everything else works and that command says so (docs/explanation/architecture.md).
"""
