"""Specification of an export: format, fields, bodies, compression.

A specification is checked when it is created, and can be pickled.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rmqctl.errors import UsageError
from rmqctl.export.layout import PARTS
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.decoded import Decoding
from rmqctl.store.objects import FIELDS, OF_BODY, PROPERTY, TIMES
from rmqctl.store.projection import DECODED, checked_fields, is_decoded
from rmqctl.store.query.conditions import Condition
from rmqctl.store.redaction import Redaction

if TYPE_CHECKING:
    import pyarrow as pa

COMPRESSIONS: dict[str, tuple[str, ...]] = {
    "parquet": ("zstd", "snappy", "gzip", "lz4", "none"),
    "json": ("none", "gzip", "zstd"),
    "csv": ("none", "gzip", "zstd"),
    "avro": ("deflate", "none"),
    "arrow": ("zstd", "lz4", "none"),
    "xlsx": ("deflate",),
}
"""Compressions of each format, the default first."""
TEXTS = ("json", "csv")
"""Text formats, which contain the rows that ``read`` writes. All other formats use Arrow columns.
"""
ORIGIN = ("store", "file")
"""Fields for the origin of a message: the store as named by the user, and the path of the file in
the store.
"""
PROVENANCE = ("position", "sha256")
"""Fields that identify a record's bytes: its position in the file, and its digest."""
_ENDINGS = {"gzip": ".gz", "zstd": ".zst"}


@dataclass(frozen=True, slots=True)
class Export:
    """The specification of an export, which `of` creates and checks. ``fields``: the fields of the
    files.
    """

    format: str = "parquet"
    fields: tuple[str, ...] = ()
    body: str = "auto"
    partition_by: tuple[str, ...] = ("topic", "day")
    compression: str = "zstd"
    zone: tzinfo = UTC
    conditions: tuple[Condition, ...] = ()
    csv_text: Callable[[str], str] | None = None
    decoding: Decoding | None = None
    redaction: Redaction | None = None

    @classmethod
    def of(cls, format: str = "parquet", *, fields: Sequence[str] | None = None,  # noqa: A002
           body: str = "auto", partition_by: Sequence[str] = ("topic", "day"),
           compression: str | None = None, zone: tzinfo = UTC,
           conditions: Sequence[Condition] = (), stores: int = 1, provenance: bool = False,
           csv_text: Callable[[str], str] | None = None,
           decoding: Decoding | None = None, decoded: bool = False,
           redaction: Redaction | None = None) -> Export:
        """Create a specification.

        ``stores``: number of stores.
        ``provenance``: add the fields of `PROVENANCE`.
        ``csv_text``: conversion of texts in CSV.
        ``decoding``: decoder of bodies.
        ``decoded``: add the fields of `DECODED`.
        ``redaction``: replaces user data with digests.
        Raises: UsageError for options that contradict each other.
        """
        # Refuse unknown names before any default is applied to them.
        if format not in COMPRESSIONS:
            raise UsageError(f"unknown format {format!r}; valid: {', '.join(COMPRESSIONS)}")
        for part in partition_by:
            if part not in PARTS:
                raise UsageError(f"cannot partition by {part!r}; valid: {', '.join(PARTS)} and "
                                 "none")
        ways = COMPRESSIONS[format]
        if compression is not None and compression not in ways:
            raise UsageError(f"{format} cannot be compressed with {compression}; valid: "
                             f"{', '.join(ways)}")
        # Choose the fields: the defaults of the format, then decoded ones, then provenance.
        parts = tuple(dict.fromkeys(partition_by))
        more = () if decoding is None else DECODED
        names = (_text_fields if format in TEXTS else _column_fields)(
            fields, body, stores, parts, more)
        if decoded and fields is None:
            names += DECODED
        if format != "json":  # lines are complete objects; elsewhere the folder has it
            names = [name for name in names if name not in parts]
        if provenance:
            names = [*names, *(name for name in (*ORIGIN, *PROVENANCE)
                               if name not in (*names, *parts))]
        if not names:
            raise UsageError("no field left besides those in the folder names "
                             f"({', '.join(parts)}); add others, or pass --partition-by none")
        return cls(format, tuple(names), body, parts, compression or ways[0], portable(zone),
                   tuple(conditions), csv_text,
                   decoding if any(map(is_decoded, names)) else None, redaction)

    @property
    def is_text(self) -> bool:
        return self.format in TEXTS

    @property
    def is_encoded(self) -> bool:
        """Return whether files are encoded or compressed by a library that works without the GIL,
        so that a thread beside the caller speeds up the export.
        """
        return self.format in ("parquet", "arrow") or (self.is_text and self.compression != "none")

    @property
    def conditions_shown(self) -> list[str]:
        """Return the conditions as strings for the manifest."""
        values = [(condition, str(condition.value)) for condition in self.conditions]
        return [f"{condition.field} {condition.operator} " + str(
            value if self.redaction is None else self.redaction.condition(condition.field, value))
            for condition, value in values]

    @property
    def ending(self) -> str:
        """Return the suffix of file names."""
        more = _ENDINGS.get(self.compression, "") if self.is_text else ""
        return f".{self.format}{more}"

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the files; for text formats, with the types of the values that the
        texts represent.
        """
        import pyarrow as pa

        from rmqctl.scan.tables import MESSAGE_COLUMNS, METADATA, PLACE, PROVENANCE

        columns = PLACE | MESSAGE_COLUMNS | PROVENANCE
        if self.is_text:
            columns |= {name: pa.field(name, kind) for name, kind in (
                ("body", pa.string()), *((name, pa.int64()) for name in TIMES))}
        return pa.schema([columns.get(name) or pa.field(name, pa.string())
                          for name in self.fields], METADATA)


def portable(zone: tzinfo) -> tzinfo:
    """Return a time zone that can be sent to workers. A zone that was read from a local file is
    replaced by its name.
    Raises: UsageError if this name is unknown.
    """
    try:
        pickle.dumps(zone)
    except pickle.PicklingError:
        name = os.path.realpath("/etc/localtime").rpartition("/zoneinfo/")[2]
        with contextlib.suppress(ZoneInfoNotFoundError, ValueError, OSError):
            return ZoneInfo(name)
        raise UsageError("--tz local: this machine's time zone has no name that workers would "
                         "understand; pass a name, such as Asia/Shanghai") from None
    return zone


def _text_fields(fields: Sequence[str] | None, body: str, stores: int,
                 parts: Sequence[str], more: Sequence[str]) -> list[str]:
    if fields is None:
        names = list(FIELDS)
        if stores > 1 and "store" not in parts:
            names.insert(0, "store")
    else:
        named = [field.strip() for field in fields]
        own = (*ORIGIN, *PROVENANCE)
        others = [name for name in named if name not in own]
        valid = set(checked_fields(others, more)) if others else set()
        names = [name for name in dict.fromkeys(named) if name in valid or name in own]
    return [name for name in names if body != "none" or name not in ("body", "body_encoding")]


def _column_fields(fields: Sequence[str] | None, body: str, _stores: int,
                   _parts: Sequence[str], more: Sequence[str]) -> list[str]:
    from rmqctl.scan.tables import MESSAGE_COLUMNS

    if body not in ("auto", "none"):
        raise UsageError(f"--body {body} is only for json and csv; this format stores bodies as "
                         "bytes")
    if fields is None:
        names = [*ORIGIN, *(name for name in MESSAGE_COLUMNS if name != "record")]
    else:
        valid = (*ORIGIN, *MESSAGE_COLUMNS, *PROVENANCE, *more)
        prefixes = (PROPERTY, OF_BODY) if more else (PROPERTY,)
        names = list(dict.fromkeys(name.strip() for name in fields if name.strip()))
        for name in names:
            if name not in valid and (name in prefixes or not name.startswith(prefixes)):
                raise UsageError(f"unknown field {name!r}; valid: {', '.join(valid)} and "
                                 f"{PROPERTY}NAME for a single property")
        if not names:
            raise UsageError(f"no field given; valid: {', '.join(MESSAGE_COLUMNS)}")
    return [name for name in names if body != "none" or name != "body"]
