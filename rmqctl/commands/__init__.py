"""The commands: a static list of names and one-line summaries, and one module per command.

``rmqctl --help`` is answered from this list alone. A command's module is imported when the
command runs or shows its own help. Each module contains a typer function ``command``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

#: The environment variable with the default of STORE.
STORE_VARIABLE = "RMQCTL_STORE"

Effect = Literal["read-only", "writes-new", "mutates"]

#: What each effect promises, in the words of every command's help.
EFFECTS: dict[Effect, str] = {
    "read-only": (
        "opens nothing for writing; bytes, modification time and inode of every input stay "
        "unchanged"
    ),
    "writes-new": "writes only the new file or folder you name; its inputs stay unchanged",
    "mutates": "changes STORE",
}


class CommandSpec(NamedTuple):
    """A command: its ``name`` as typed (``("query", "key")``) and the summary that ``--help``
    shows.
    """

    name: tuple[str, ...]
    module: str
    help: str
    effect: Effect
    section: str

    @property
    def title(self) -> str:
        """Return the name as typed: ``query key``."""
        return " ".join(self.name)


class GroupSpec(NamedTuple):
    """A command group: a word, such as ``query``, that is followed by a sub-command."""

    name: tuple[str, ...]
    help: str
    section: str


_INSPECT = "Inspect"
_CHECK = "Check"
_WRITE = "Write"
_REPAIR = "Repair"
_BACKUP = "Backup"
_TIERED = "Tiered storage"
_PIPELINE = "Pipeline"
_SERVE = "Serve"
_ABOUT = "About rmqctl"

#: Words whose sub-commands have a folder of their own; the others are in that of their section.
_WORDS = ("query", "delete", "tiered", "pipeline")
_FOLDERS = {_INSPECT: "inspect", _CHECK: "check", _WRITE: "write", _REPAIR: "repair",
            _BACKUP: "backup"}


def _spec(name: str, effect: Effect, section: str, help: str) -> CommandSpec:  # noqa: A002
    words = tuple(name.split())
    folder, rest = (words[0], words[1:]) if words[0] in _WORDS else (_FOLDERS.get(section), words)
    module = ".".join(filter(None, (
        "rmqctl.commands", folder, "_".join(rest).replace("-", "_"))))
    return CommandSpec(words, module, help, effect, section)


GROUPS: tuple[GroupSpec, ...] = (
    GroupSpec(("query",), "Find messages by key, id, time or physical offset", _INSPECT),
    GroupSpec(("offsets",), "Show queue ranges, consumer offsets and lag", _INSPECT),
    GroupSpec(("config",), "Show topics, groups, offsets and other files of config/", _INSPECT),
    GroupSpec(("dlq",), "List and requeue dead letters", _INSPECT),
    GroupSpec(("timers",), "List timed messages", _INSPECT),
    GroupSpec(("pop",), "List and release messages that POP delivered", _INSPECT),
    GroupSpec(("transactions",), "List, commit and roll back pending transactions", _INSPECT),
    GroupSpec(("recover",), "Repair a damaged store without losing intact messages", _REPAIR),
    GroupSpec(("delete",), "Erase messages with all their copies; delete topics and groups",
              _REPAIR),
    GroupSpec(("backup",), "Back up a store consistently, even while a broker runs", _BACKUP),
    GroupSpec(("tiered",), "Read, verify, write and recover tiered storage", _TIERED),
    GroupSpec(("tiered", "query"), "Find messages in a tier by key, time or offset", _TIERED),
    GroupSpec(("pipeline",), "Verify, export and query many stores on Apache Spark", _PIPELINE),
    GroupSpec(("topic",), "Create, change and restore topics", _WRITE),
)

REGISTRY: tuple[CommandSpec, ...] = (
    _spec("info", "read-only", _INSPECT,
          "Show a store's files, offsets, times and lock on one screen"),
    _spec("browse", "read-only", _INSPECT, "Browse a store interactively"),
    _spec("dump", "read-only", _INSPECT, "Print any file of a store, record by record"),
    _spec("read", "read-only", _INSPECT, "Print messages by topic, queue or time, or in log order"),
    _spec("tail", "read-only", _INSPECT, "Print the newest messages; with -f, follow the log"),
    _spec("query key", "read-only", _INSPECT, "Find messages by key with the index files"),
    _spec("query id", "read-only", _INSPECT, "Find a message by its message id"),
    _spec("query time", "read-only", _INSPECT,
          "Find the queue offset for a time, as a broker does"),
    _spec("query offset", "read-only", _INSPECT, "Show the message at a physical or queue offset"),
    _spec("offsets", "read-only", _INSPECT, "Show queue ranges, consumer offsets and lag"),
    _spec("offsets diff", "read-only", _INSPECT,
          "Compare the consumer offsets of two stores or files"),
    _spec("offsets export", "read-only", _INSPECT, "Print consumer offsets as consumerOffset.json"),
    _spec("dlq list", "read-only", _INSPECT, "List dead letters with their origin and retry count"),
    _spec("timers list", "read-only", _INSPECT, "List timed messages by due time"),
    _spec("pop list", "read-only", _INSPECT,
          "List messages delivered by POP that no consumer acknowledged"),
    _spec("transactions list", "read-only", _INSPECT,
          "List half messages without commit or rollback"),
    _spec("config", "read-only", _INSPECT,
          "Show topics, groups, offsets and other files of config/"),
    _spec("config check", "read-only", _INSPECT,
          "Check a broker.conf: names, values, folders, store"),
    _spec("stats", "read-only", _INSPECT,
          "Count messages, bytes and rates by topic, queue, tag or time"),
    _spec("du", "read-only", _INSPECT,
          "Show disk usage by structure, topic and files kept for undo"),
    _spec("export", "writes-new", _INSPECT,
          "Export messages to Parquet, CSV, Excel and other formats"),
    _spec("sql", "read-only", _INSPECT, "Query messages, queues, index and offsets with SQL"),
    _spec("doctor", "read-only", _CHECK,
          "Diagnose a store: problems, affected consumers, next steps"),
    _spec("verify", "read-only", _CHECK, "Check the integrity of a store, byte by byte"),
    _spec("preflight", "read-only", _CHECK,
          "Predict what a broker would do to the store at startup"),
    _spec("retention", "read-only", _CHECK,
          "Predict which files the broker's cleaner deletes, and when"),
    _spec("impact", "read-only", _CHECK,
          "Show how damage and a restart affect each consumer group"),
    _spec("report", "writes-new", _CHECK, "Write a self-contained HTML incident report"),
    _spec("case", "writes-new", _CHECK,
          "Collect evidence: checksums, report, messages, damaged bytes"),
    _spec("exporter", "read-only", _CHECK, "Serve metrics of stores to Prometheus"),
    _spec("explain", "read-only", _CHECK,
          "Explain a finding or an action, and what to do about it"),
    _spec("diff", "read-only", _CHECK, "Compare two stores: missing, extra, different messages"),
    _spec("recover table", "read-only", _CHECK, "Rebuild the topicQueueTable from the commitlog"),
    _spec("init", "mutates", _WRITE, "Create an empty store"),
    _spec("write", "mutates", _WRITE, "Append one message as a broker would"),
    _spec("append", "mutates", _WRITE, "Append messages from JSON lines"),
    _spec("dlq requeue", "mutates", _WRITE, "Send dead letters again, to their topic or to a file"),
    _spec("flush", "mutates", _WRITE, "Flush all files to disk and update the checkpoint"),
    _spec("topic create", "mutates", _WRITE, "Create or change a topic in config/topics.json"),
    _spec("recover", "mutates", _REPAIR, "Repair a damaged store without losing intact messages"),
    _spec("truncate", "mutates", _REPAIR, "Truncate the log and everything derived from it"),
    _spec("convert", "mutates", _REPAIR, "Convert a store to another layout or an older release"),
    _spec("expire", "mutates", _REPAIR, "Remove expired files by a broker's cleanup rules"),
    _spec("offsets reset", "mutates", _REPAIR,
          "Set a group's offsets to a time, an offset or either end"),
    _spec("offsets copy", "mutates", _REPAIR, "Copy the offsets of one group to another"),
    _spec("offsets import", "mutates", _REPAIR,
          "Import consumer offsets from a file or another store"),
    _spec("pop release", "mutates", _REPAIR, "Make unacknowledged POP messages visible again"),
    _spec("transactions commit", "mutates", _REPAIR, "Commit pending transactions"),
    _spec("transactions rollback", "mutates", _REPAIR, "Roll back pending transactions"),
    _spec("config convert", "mutates", _REPAIR, "Convert config/ between JSON files and RocksDB"),
    _spec("config merge", "mutates", _REPAIR, "Add missing topics and groups from another source"),
    _spec("topic restore", "mutates", _REPAIR, "Restore a topic that is missing from topics.json"),
    _spec("delete message", "mutates", _REPAIR, "Erase messages, with all copies in the store"),
    _spec("delete key", "mutates", _REPAIR, "Erase the messages with a key, with all copies"),
    _spec("delete topic", "mutates", _REPAIR, "Delete a topic: messages, queues, offsets, entry"),
    _spec("delete group", "mutates", _REPAIR, "Delete a group: offsets, retries, dead letters"),
    _spec("carve", "writes-new", _REPAIR,
          "Carve messages out of damaged files, disk images or devices"),
    _spec("undo", "mutates", _REPAIR, "Undo a repair"),
    _spec("backup", "writes-new", _BACKUP,
          "Back up a store consistently, even while a broker runs"),
    _spec("backup list", "read-only", _BACKUP, "List the restore points of a backup"),
    _spec("backup check", "read-only", _BACKUP, "Check whether a backup can be restored"),
    _spec("restore", "writes-new", _BACKUP,
          "Restore a store from a backup, as of any time it covers"),
    _spec("tiered ls", "read-only", _TIERED, "List queues, segments and index files of a tier"),
    _spec("tiered verify", "read-only", _TIERED, "Check the integrity of a tier, byte by byte"),
    _spec("tiered read", "read-only", _TIERED,
          "Print messages of a tier, optionally with the local store"),
    _spec("tiered query key", "read-only", _TIERED, "Find messages by key with a tier's index"),
    _spec("tiered query time", "read-only", _TIERED, "Find the queue offset for a time in a tier"),
    _spec("tiered query offset", "read-only", _TIERED,
          "Show the message at a queue offset or log offset of a tier"),
    _spec("tiered stats", "read-only", _TIERED, "Count a tier's messages, bytes and rates"),
    _spec("tiered export", "writes-new", _TIERED, "Export a tier's messages to files"),
    _spec("tiered dump", "read-only", _TIERED, "Print any file of a tier, record by record"),
    _spec("tiered dispatch", "mutates", _TIERED, "Upload a local store's messages to a tier"),
    _spec("tiered commit", "mutates", _TIERED, "Complete an interrupted upload"),
    _spec("tiered compact", "mutates", _TIERED, "Rearrange local index files and upload them"),
    _spec("tiered recover", "mutates", _TIERED, "Repair a tier from its own files"),
    _spec("tiered expire", "mutates", _TIERED,"Remove expired files of a tier by a broker's rules"),
    _spec("pipeline verify", "read-only", _PIPELINE, "Check the integrity of many stores"),
    _spec("pipeline stats", "read-only", _PIPELINE,
          "Count messages, bytes and rates of many stores"),
    _spec("pipeline rebuild", "mutates", _PIPELINE,
          "Rebuild consume queues and index of many stores"),
    _spec("pipeline export", "writes-new", _PIPELINE,
          "Export messages as Parquet, JSON, CSV or Avro"),
    _spec("pipeline sql", "writes-new", _PIPELINE,
          "Query messages and entries of many stores with SQL"),
    _spec("serve", "read-only", _SERVE, "Serve stores to RocketMQ clients"),
    _spec("commands", "read-only", _ABOUT,
          "List every command with its effect, arguments and options"),
)
