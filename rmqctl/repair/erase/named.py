"""Select messages by the options of ``delete``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmqctl.errors import StoreIOError, UsageError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record
from rmqctl.repair.erase.inner import Inner
from rmqctl.scan.source import FileSource
from rmqctl.store.objects import PROPERTY
from rmqctl.store.query.conditions import Condition
from rmqctl.store.query.select import Selection

_MAX_SIZE = 64 << 20


def read_ids(path: str) -> list[str]:
    """Return the ids in a file, one per line. Raises: UsageError if the file has no ids;
    StoreIOError.
    """
    with FileSource(path) as source:
        if source.size > _MAX_SIZE:
            raise UsageError(f"{path}: larger than {_MAX_SIZE >> 20} MiB, too large for a list of "
                             "ids")
        data = source.read(0, source.size)
    try:
        ids = [line.strip() for line in data.decode("utf-8-sig").splitlines()
               if line.strip()]
    except UnicodeDecodeError as error:
        raise StoreIOError(f"{path}: invalid UTF-8 at byte {error.start}") from None
    if not ids:
        raise UsageError(f"{path}: contains no ids")
    return ids


def selection(topic: str | None, key: str | None, named: Sequence[str]) -> Selection | None:
    """Return a selection of the messages of a topic (None: of any topic). Raises: UsageError.

    The messages have the key and all of the properties ``NAME=VALUE``. The selection reads the log,
    so it includes messages without a consume queue entry.
    """
    if not (key or named):
        return None
    where = [] if topic is None else [Condition("topic", "=", topic)]
    for text in named:
        name, sign, value = text.partition("=")
        if not (sign and name and value):
            raise UsageError(f"--property {text}: expected NAME=VALUE")
        where.append(Condition(PROPERTY + name, "=", value))
    return Selection(key=key, where=tuple(where))


def in_batches(selected: Selection | None) -> Callable[[Record, Inner], bool] | None:
    """Return a function that tests, by keys and properties, whether a selection includes a message
    inside a batch.
    """
    if selected is None:
        return None

    def selects(record: Record, inner: Inner) -> bool:
        properties = props.parse(inner.properties.decode("utf-8", "replace"))
        topic = record.topic.decode("utf-8", "replace")
        keys = [*props.split_keys(properties.get(props.KEYS)), properties.get(props.UNIQUE_KEY)]
        return (selected.key is None or selected.key in keys) and all(
            (topic if wanted.field == "topic" else properties.get(
                wanted.field.removeprefix(PROPERTY))) == wanted.value for wanted in selected.where)

    return selects
