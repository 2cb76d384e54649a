"""Writer for RocksDB databases, in a format that a broker's RocksDB library can read (spec:
rocksdb.md §10, §11).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from rmqctl.errors import StoreIOError, require
from rmqctl.files.durable import failed

FORMAT_VERSION = 5
"""Format version of tables: the newest that a broker's RocksDB 8.4 supports. The default of the
library used here is newer.
"""
DEFAULT = "default"
_NEEDED = re.compile(r"\d+\.sst|MANIFEST-\d+|IDENTITY|CURRENT", re.ASCII)
_BATCH = 1 << 12


class NewDatabase:
    """A database that is being written into `folder`.

    Files that a killed run left in `folder` are removed first. ``compressed``: compress the tables
    with LZ4.

    All methods raise MissingExtraError, StoreIOError.
    """

    def __init__(self, folder: str, families: Iterable[str], *, compressed: bool) -> None:
        require("rocksdict")
        from rocksdict import AccessType, Rdict

        self.folder, self._families = folder, [DEFAULT, *(
            name for name in families if name != DEFAULT)]
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.makedirs(folder)
        except OSError as error:
            raise failed(error, folder, "make") from None
        try:
            self._base: Any = Rdict(folder, _options(compressed), {
                name: _options(compressed) for name in self._families[1:]},
                AccessType.read_write())
        except Exception as error:  # noqa: BLE001  the library has no kind of its own for it
            raise self._failed(error) from None
        self._unlogged = _write_options()
        self._unlogged.disable_wal = True  # everything is flushed at the end

    def handle(self, family: str) -> Any:
        """Return the column family handle for `WriteBatch.put`."""
        return self._base.get_column_family_handle(family)

    def write(self, batch: Any) -> None:
        try:
            self._base.write(batch, self._unlogged)
        except Exception as error:  # noqa: BLE001
            raise self._failed(error) from None

    def finish(self) -> list[str]:
        """Write everything to tables and close them. Return the names of the database's files.

        The last is CURRENT; without it, the folder is not a database. Other files that the library
        creates in the folder are not needed.
        """
        try:
            for name in self._families:
                family = self._base.get_column_family(name)
                family.flush()
                family.close()
            self._base.close()
        except Exception as error:  # noqa: BLE001
            raise self._failed(error) from None
        return sorted((name for name in os.listdir(self.folder) if _NEEDED.fullmatch(name)),
                      key=lambda name: (name == "CURRENT", name))

    def _failed(self, error: Exception) -> StoreIOError:
        return StoreIOError(f"cannot write the RocksDB database {self.folder}: "
                            f"{' '.join(str(error).split())}")


def write_database(folder: str,
                   families: Mapping[str, Iterable[tuple[bytes, bytes]]]) -> list[str]:
    """Create a database with these column families; see `NewDatabase.finish`."""
    database = NewDatabase(folder, families, compressed=False)
    from rocksdict import WriteBatch

    for name, entries in families.items():
        handle, rest = database.handle(name), iter(entries)
        while some := list(islice(rest, _BATCH)):
            batch = WriteBatch(raw_mode=True)
            for key, value in some:
                batch.put(key, value, handle)
            database.write(batch)
    return database.finish()


def _write_options() -> Any:  # the library's types declare a property as a method
    from rocksdict import WriteOptions

    return WriteOptions()


def _options(compressed: bool) -> Any:
    from rocksdict import BlockBasedOptions, DBCompressionType, Options

    table = BlockBasedOptions()
    table.set_format_version(FORMAT_VERSION)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(
        DBCompressionType.lz4() if compressed else DBCompressionType.none())
    return options
