"""Extensions: features that most people who inspect or repair a store never need.

The core imports no extension; a command imports its extension when it runs. If the folder of an
extension is missing, only its commands fail, with an error that says so
(docs/explanation/architecture.md).
"""
