"""New RocksDB data bases in the form a broker's own library takes (spec: rocksdb.md §10, §11)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from rmqctl.errors import StoreIOError, require

FORMAT_VERSION = 5
"""Of tables: what RocksDB 8.4, a broker's, has. The library's own default is a later one."""
DEFAULT = "default"
_NEEDED = re.compile(r"\d+\.sst|MANIFEST-\d+|IDENTITY|CURRENT", re.ASCII)


def write_database(folder: str,
                   families: Mapping[str, Iterable[tuple[bytes, bytes]]]) -> list[str]:
    """Makes a data base with these column families in ``folder``, which is not there yet.

    The names of the files that are part of it, CURRENT, without which it is none, last; what else
    the library leaves there is not needed. All entries lie in tables, none in a write-ahead log.
    MissingExtraError, StoreIOError.
    """
    require("rocksdict")
    from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, WriteOptions

    def options() -> Options:
        table = BlockBasedOptions()
        table.set_format_version(FORMAT_VERSION)
        made = Options(raw_mode=True)
        made.create_if_missing(True)
        made.create_missing_column_families(True)
        made.set_compression_type(DBCompressionType.none())
        made.set_block_based_table_factory(table)
        return made

    unlogged = WriteOptions()
    unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
    try:
        base = Rdict(folder, options(), {name: options() for name in families if name != DEFAULT})
        try:
            for name, entries in families.items():
                family = base if name == DEFAULT else base.get_column_family(name)
                family.set_write_options(unlogged)
                for key, value in entries:
                    family[key] = value
                family.flush()
        finally:
            base.close()
    except Exception as error:  # noqa: BLE001  the library has no kind of its own for it
        raise StoreIOError(f"{folder}: cannot make a RocksDB data base: {error}") from None
    return sorted((name for name in os.listdir(folder) if _NEEDED.fullmatch(name)),
                  key=lambda name: (name == "CURRENT", name))
