"""The commands: a static list of names and one-line helps, and one module per command.

``rmqctl --help`` is answered from this list alone. A command's module is imported when the
command is run, or asked for its own help. Each module holds a typer function ``command``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

#: The environment variable that stands in for STORE.
STORE_VARIABLE = "RMQCTL_STORE"

Effect = Literal["read-only", "writes-new", "mutates"]

#: What each effect promises, in the words of every command's help.
EFFECTS: dict[Effect, str] = {
    "read-only": (
        "opens nothing for writing: bytes, modification time and inode of every input stay as "
        "they were"
    ),
    "writes-new": "writes only the new place you name; its inputs stay as they were",
    "mutates": "changes STORE",
}


class CommandSpec(NamedTuple):
    """One command: ``name`` as typed (``("query", "key")``), and what ``--help`` says of it."""

    name: tuple[str, ...]
    module: str
    help: str
    effect: Effect
    section: str

    @property
    def title(self) -> str:
        """The name as typed: ``query key``."""
        return " ".join(self.name)


class GroupSpec(NamedTuple):
    """A word that is followed by a sub-command."""

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

#: Words whose sub-commands have a folder of their own; the others lie in that of their section.
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
    GroupSpec(("offsets",), "Queue ranges, consumer offsets and their lag", _INSPECT),
    GroupSpec(("config",), "Topics, groups, positions and the rest of config/", _INSPECT),
    GroupSpec(("dlq",), "Dead letters: the messages that groups gave up", _INSPECT),
    GroupSpec(("timers",), "Timed messages: what waits for its time", _INSPECT),
    GroupSpec(("pop",), "Messages delivered by POP and not acknowledged", _INSPECT),
    GroupSpec(("transactions",), "Half messages that nobody committed or rolled back", _INSPECT),
    GroupSpec(("recover",), "Make a damaged store whole; no intact message is lost", _REPAIR),
    GroupSpec(("delete",), "Erase messages with all their copies; delete topics and groups",
              _REPAIR),
    GroupSpec(("backup",), "A consistent copy of a store, in use or not", _BACKUP),
    GroupSpec(("tiered",), "What a broker moved to tiered storage: read, verify, write, recover",
              _TIERED),
    GroupSpec(("tiered", "query"), "Find messages of a tier by key, time or offset", _TIERED),
    GroupSpec(("pipeline",), "The same on Apache Spark: fleets of stores, on a cluster", _PIPELINE),
    GroupSpec(("topic",), "Topics of a store", _WRITE),
)

REGISTRY: tuple[CommandSpec, ...] = (
    _spec("info", "read-only", _INSPECT, "One screen on a store: files, offsets, times, lock"),
    _spec("browse", "read-only", _INSPECT, "Browse a store interactively"),
    _spec("dump", "read-only", _INSPECT, "One file of any kind, record by record"),
    _spec("read", "read-only", _INSPECT, "Messages by topic and queue, by time, or in log order"),
    _spec("tail", "read-only", _INSPECT, "The last messages, then new ones as a broker appends"),
    _spec("query key", "read-only", _INSPECT, "Messages with a key, through the index files"),
    _spec("query id", "read-only", _INSPECT, "The message with a message id"),
    _spec("query time", "read-only", _INSPECT, "The queue offset at a time, as a broker says"),
    _spec("query offset", "read-only", _INSPECT, "The message at a physical offset"),
    _spec("offsets", "read-only", _INSPECT, "Queue ranges, consumer offsets and their lag"),
    _spec("offsets diff", "read-only", _INSPECT, "Where the offsets of two stores or files differ"),
    _spec("offsets export", "read-only", _INSPECT, "The offsets in the form of a broker's file"),
    _spec("dlq list", "read-only", _INSPECT, "Dead letters by group: where from, how often failed"),
    _spec("timers list", "read-only", _INSPECT, "Timed messages by the time when they are due"),
    _spec("pop list", "read-only", _INSPECT, "Messages delivered by POP and not acknowledged"),
    _spec("transactions list", "read-only", _INSPECT, "Half messages without commit or rollback"),
    _spec("config", "read-only", _INSPECT, "Topics, groups, positions and the rest of config/"),
    _spec("config check", "read-only", _INSPECT,
          "Check a broker.conf: names, values, folders, store"),
    _spec("stats", "read-only", _INSPECT, "Counts, bytes and rates by topic, queue, tag or time"),
    _spec("du", "read-only", _INSPECT, "Where the bytes are: structures, topics, kept repairs"),
    _spec("export", "writes-new", _INSPECT, "Messages for other programs: Parquet, CSV, Excel …"),
    _spec("sql", "read-only", _INSPECT, "A query over messages, queues, index, offsets, findings"),
    _spec("doctor", "read-only", _CHECK, "What is wrong, who is affected, what to do: one screen"),
    _spec("verify", "read-only", _CHECK, "Check everything that can be checked, byte by byte"),
    _spec("preflight", "read-only", _CHECK, "What a broker would do to a store when it starts"),
    _spec("retention", "read-only", _CHECK, "What the cleaner deletes, and when the disk is full"),
    _spec("impact", "read-only", _CHECK, "What damage and a start mean for each consumer group"),
    _spec("report", "writes-new", _CHECK, "All of that in one HTML file, with charts, to pass on"),
    _spec("case", "writes-new", _CHECK, "Collect evidence: sums, report, messages, damaged bytes"),
    _spec("exporter", "read-only", _CHECK, "Metrics of stores for Prometheus, over HTTP"),
    _spec("explain", "read-only", _CHECK, "What a finding or an action means, and what to do"),
    _spec("diff", "read-only", _CHECK, "Compare two stores: missing, extra, different messages"),
    _spec("recover table", "read-only", _CHECK, "The topicQueueTable, rebuilt from the commitlog"),
    _spec("init", "mutates", _WRITE, "Make an empty store"),
    _spec("write", "mutates", _WRITE, "Put one message, the way a broker does"),
    _spec("append", "mutates", _WRITE, "Put many messages, from JSON lines"),
    _spec("dlq requeue", "mutates", _WRITE, "Send dead letters anew: to their topic, or a file"),
    _spec("flush", "mutates", _WRITE, "Force everything to disk, then the checkpoint"),
    _spec("topic create", "mutates", _WRITE, "Enter a topic into config/topics.json, or change it"),
    _spec("recover", "mutates", _REPAIR, "Make a damaged store whole; no intact message is lost"),
    _spec("truncate", "mutates", _REPAIR, "Cut the log, and everything derived from it"),
    _spec("convert", "mutates", _REPAIR, "Another layout (queues, log folders), an older release"),
    _spec("expire", "mutates", _REPAIR, "Take expired files away, as a broker's cleaner would"),
    _spec("offsets reset", "mutates", _REPAIR, "Set a group's offsets: by time, number or end"),
    _spec("offsets copy", "mutates", _REPAIR, "Give a group the offsets of another group"),
    _spec("offsets import", "mutates", _REPAIR, "Take over offsets from a file or another store"),
    _spec("pop release", "mutates", _REPAIR, "Make unacknowledged POP messages visible again"),
    _spec("transactions commit", "mutates", _REPAIR, "Commit transactions that nobody ended"),
    _spec("transactions rollback", "mutates", _REPAIR, "Roll back transactions that nobody ended"),
    _spec("config convert", "mutates", _REPAIR, "Topics, groups and positions in JSON or RocksDB"),
    _spec("config merge", "mutates", _REPAIR, "Take over missing topics and groups"),
    _spec("topic restore", "mutates", _REPAIR, "Restore a topic that is missing from topics.json"),
    _spec("delete message", "mutates", _REPAIR, "Erase messages, with all copies in the store"),
    _spec("delete key", "mutates", _REPAIR, "Erase the messages with a key, with all copies"),
    _spec("delete topic", "mutates", _REPAIR, "Delete a topic: messages, queues, offsets, entry"),
    _spec("delete group", "mutates", _REPAIR, "Delete a group: offsets, retries, dead letters"),
    _spec("carve", "writes-new", _REPAIR, "Messages out of any bytes, by content alone"),
    _spec("undo", "mutates", _REPAIR, "Take a repair back: everything becomes what it was"),
    _spec("backup", "writes-new", _BACKUP, "A consistent copy of a store, in use or not"),
    _spec("backup list", "read-only", _BACKUP, "The restore points of a backup"),
    _spec("backup check", "read-only", _BACKUP, "Whether a backup can be restored, byte by byte"),
    _spec("restore", "writes-new", _BACKUP, "A store from a backup, as at any moment before"),
    _spec("tiered ls", "read-only", _TIERED, "Queues, segments and index files of a tier"),
    _spec("tiered verify", "read-only", _TIERED, "Check a tier, byte by byte"),
    _spec("tiered read", "read-only", _TIERED, "Messages of a tier, alone or with the local store"),
    _spec("tiered query key", "read-only", _TIERED, "Messages with a key, through a tier's index"),
    _spec("tiered query time", "read-only", _TIERED, "The queue offset at a time in a tier"),
    _spec("tiered query offset", "read-only", _TIERED,
          "The message at a queue offset of a tier, or in its log"),
    _spec("tiered stats", "read-only", _TIERED, "Counts, bytes and rates of a tier's messages"),
    _spec("tiered dump", "read-only", _TIERED, "One file of a tier, record by record"),
    _spec("tiered dispatch", "mutates", _TIERED, "Upload a local store's messages to a tier"),
    _spec("tiered commit", "mutates", _TIERED, "Complete an upload that was killed"),
    _spec("tiered compact", "mutates", _TIERED, "Rearrange local index files and upload them"),
    _spec("tiered recover", "mutates", _TIERED, "Make a tier whole from its files alone"),
    _spec("tiered expire", "mutates", _TIERED,
          "Take expired files of a tier away, as a broker would"),
    _spec("pipeline verify", "read-only", _PIPELINE, "Check many stores, byte by byte"),
    _spec("pipeline stats", "read-only", _PIPELINE,
          "Counts, bytes and rates of many stores"),
    _spec("pipeline rebuild", "mutates", _PIPELINE,
          "Consumequeues and index of many stores, from their logs"),
    _spec("pipeline export", "writes-new", _PIPELINE,
          "Messages as Parquet, JSON, CSV or Avro, by topic and day"),
    _spec("pipeline sql", "writes-new", _PIPELINE,
          "A query over messages, frames, consumequeue and index"),
    _spec("serve", "read-only", _SERVE, "Stores behind RocketMQ's protocol, for any client"),
    _spec("commands", "read-only", _ABOUT, "Every command with its effect, arguments and options"),
)
