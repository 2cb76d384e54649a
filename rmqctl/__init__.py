"""rmqctl: read, query and verify Apache RocketMQ store directories, offline."""

# The one place the version is written; the build back end reads it from here. A constant costs
# nothing at start, whereas importlib.metadata alone takes a third of the time of `rmqctl --help`.
__version__ = "0.1.0"
