"""Names in a tier: the cluster's folder, segment files, topics that are never uploaded (tiered.md
§1, §7).

The name of a segment file begins with eight hex digits of the MD5 of its base offset, followed by
the offset in 20 digits. So names do not sort by offset: sort by the parsed offset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

COMMIT_LOG = "COMMIT_LOG"
CONSUME_QUEUE = "CONSUME_QUEUE"
INDEX = "INDEX"
KINDS = (COMMIT_LOG, CONSUME_QUEUE, INDEX)
"""The types of flat files; the index of a type in this sequence is its number in the metadata."""

INDEX_TOPIC = "rmq_sys_INDEX"
INDEX_QUEUE = 0
LOCAL_INDEX_FOLDER = "tiered_index_file"
COMPACTING_FOLDER = "compacting"
OLD_INDEX_NAMES = ("0000", "1111", "2222")
"""The names of the local index files of 5.1.x: current, full, compacted."""
METADATA_NAME = "tieredStoreMetadata.json"
TIER_FOLDER = "tieredstore"
"""The path of a tier inside a store, in the test data and in the documentation."""

_HASH = 8
_DIGITS = 20
_LONG_MAX = (1 << 63) - 1


def name_hash(text: str) -> str:
    """Return the first eight hex digits of a text's MD5, which are part of every name in a tier."""
    try:
        data = text.encode("utf-8", "surrogateescape")  # a name of the file system
    except UnicodeEncodeError:  # half of a surrogate pair, which Java writes as a question mark
        data = text.encode("utf-8", "replace")
    return hashlib.md5(data, usedforsecurity=False).hexdigest()[:_HASH]


def cluster_folder(cluster: str) -> str:
    """Return the folder of a cluster below the tier root: ``212d6b50_DefaultCluster``."""
    return f"{name_hash(cluster)}_{cluster}"


def parse_cluster(name: str) -> tuple[str, bool] | None:
    """Return (cluster name, whether the hash before the name is right); None for any other folder
    name.
    """
    head, mark, cluster = name.partition("_")
    if not mark or not cluster or len(head) != _HASH or not _is_hex(head):
        return None
    return cluster, head == name_hash(cluster)


def promise_tier(names: Iterable[str]) -> bool:
    """Return whether a folder that contains entries with these names may be a tier, or contain a
    tier.
    """
    return any(name == TIER_FOLDER or parse_cluster(name) for name in names)


def build_segment(base: int) -> str:
    """Return the file name of the segment that starts at logical offset ``base``.

    Raises: ValueError for an invalid offset.
    """
    if not 0 <= base <= _LONG_MAX:
        raise ValueError(f"no segment can start at {base}")
    return f"{name_hash(str(base))}{base:0{_DIGITS}d}"


def parse_segment(name: str) -> tuple[int, bool] | None:
    """Return (base offset, whether the hash before the offset is right); None for any other file
    name.
    """
    head, digits = name[:_HASH], name[_HASH:]
    if len(digits) != _DIGITS or not _is_hex(head) or not (digits.isascii() and digits.isdigit()):
        return None
    base = int(digits)
    if base > _LONG_MAX:
        return None
    return base, head == name_hash(str(base))


def segment_path(cluster: str, broker: str, topic: str, queue_id: int, kind: str,
                 base: int) -> str:
    """Return the path of a segment below the tier root."""
    return (f"{cluster_folder(cluster)}/{metadata_path(broker, topic, queue_id)}/{kind}/"
            f"{build_segment(base)}")


def metadata_path(broker: str, topic: str, queue_id: int) -> str:
    """Return a flat file's path in the metadata, which has no cluster, type or file name (§6)."""
    return f"{broker}/{topic}/{queue_id}"


def index_path(broker: str) -> str:
    """Return the path that the metadata uses for a broker's index files."""
    return metadata_path(broker, INDEX_TOPIC, INDEX_QUEUE)


_SYSTEM = frozenset({
    "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC"})


def is_filtered(topic: str, cluster: str | None = None, broker: str | None = None) -> bool:
    """Return whether a broker never uploads a topic (§7): system topics, LMQ, topics named after
    the broker or its cluster.
    """
    return (not topic.strip() or topic in _SYSTEM or topic.startswith(("rmq_sys_", "%LMQ%"))
            or topic in (cluster, broker))


def _is_hex(text: str) -> bool:
    return all(char in "0123456789abcdef" for char in text)
