"""A RocksDB database, read without changing anything in its folder (spec: rocksdb.md §9, §11).

Even for reading, the RocksDB library writes into the folder that it opens. So the library gets a
temporary folder (`mirror`). Entries in the write-ahead logs are also read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from rmqctl.errors import FormatError, MissingExtraError, StoreIOError
from rmqctl.scan.source import Closing
from rmqctl.store.rocksdb.mirror import VanishedError, mirror

if TYPE_CHECKING:
    import tempfile

    from rocksdict import Options, Rdict

_TRIES, _PAUSE = 4, 0.05
"""Attempts to read a database whose files vanish because a running broker deletes them.

* ``_TRIES``: maximum number of attempts.
* ``_PAUSE``: seconds between two attempts.
"""
_OPEN_TABLES = 500
"""Maximum number of open tables. Tables stay open because a running broker may delete their files,
and a deleted file cannot be opened again.
"""


class Database(Closing):
    """A database opened for reading. Use `open`; it is a context manager.

    * ``families``: the names of its column families.
    * ``damage``: sentences about damage in parts of the database; all other parts are read.
    """

    def __init__(self, folder: str, shadow: tempfile.TemporaryDirectory[str], base: Rdict,
                 families: list[str], damage: tuple[str, ...]) -> None:
        self.folder, self.families, self.damage = folder, tuple(families), damage
        self._shadow, self._base = shadow, base
        self._handles: dict[str, Any] = {}

    @classmethod
    def open(cls, folder: str) -> Database:
        """Open the database in ``folder``.

        Raises: FormatError if it is too damaged to be opened (a broker cannot open it either),
        StoreIOError if the operating system cannot read a file, MissingExtraError if the library is
        not installed.
        """
        try:
            import rocksdict  # noqa: F401  asked for before anything is copied
        except ImportError:
            raise MissingExtraError("rocksdict") from None
        for left in range(_TRIES - 1, -1, -1):
            try:
                return cls._open(folder)
            # a running broker creates and deletes files all the time
            except VanishedError as error:
                if not left:
                    raise FormatError(str(error), file=folder) from None
            time.sleep(_PAUSE)
        raise AssertionError

    @classmethod
    def _open(cls, folder: str) -> Database:
        import tempfile

        try:
            shadow = tempfile.TemporaryDirectory(prefix="rmqctl-rocksdb-",
                                                 ignore_cleanup_errors=True)
        except OSError as error:
            raise StoreIOError.from_oserror(error, tempfile.gettempdir(),
                                            "create a temporary folder in") from None
        try:
            tables, damage = mirror(folder, shadow.name)
            base, families = _opened(folder, shadow.name, tables, damage)
            return cls(folder, shadow, base, families, tuple(damage))
        except BaseException:
            shadow.cleanup()
            raise

    def close(self) -> None:
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()
        self._base.close()
        self._shadow.cleanup()

    def items(self, family: str, start: bytes = b"", end: bytes | None = None) -> Iterator[
            tuple[bytes, bytes]]:
        """Yield (key, value) for the keys of a family in ``[start, end)``, in ascending order of
        bytes.

        Items are read on demand, so memory does not grow with their number. A family that does not
        exist has no items. Raises: FormatError at the first unreadable item, after all earlier
        items.
        """
        if family not in self.families:
            return
        bounds = self._below(end)
        key: bytes | None = None
        for key, value in self._family(family).items(from_key=start, read_opt=bounds):
            yield key, value
        self._check_end(family, start if key is None else key + b"\0", bounds)

    def page(self, family: str, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Return the items of `items` as a list. A list is several times faster, but needs memory
        for all items. Use this method only for small ranges.
        """
        if family not in self.families:
            return []
        bounds = self._below(end)
        items = list(self._family(family).items(from_key=start, read_opt=bounds))
        self._check_end(family, items[-1][0] + b"\0" if items else start, bounds)
        return items

    def _check_end(self, family: str, behind: bytes, bounds: Any) -> None:
        """Raise FormatError unless the iteration over the library's items reached the end.

        The iteration also stops, without an error, at a damaged block. Only a cursor shows the
        difference.
        """
        with self._telling(family):
            cursor = self._family(family).iter(bounds)
            cursor.seek(behind)
            cursor.status()

    def last(self, family: str, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the (key, value) with the greatest key in ``[start, end)`` of a family.

        None if the range is empty. Raises: FormatError if it cannot be read.
        """
        if family not in self.families:
            return None
        with self._telling(family):
            cursor = self._family(family).iter(self._below(end))
            cursor.seek_to_last()
            cursor.status()
            if not cursor.valid() or cursor.key() < start:
                return None
            return cursor.key(), cursor.value()

    def cursor(self, family: str) -> Cursor:
        """Return a cursor for the keys of a family. A cursor is several times faster than calling
        `items` for each key.
        """
        with self._telling(family):
            return Cursor(self._family(family).iter(self._below(None)) if (
                family in self.families) else None, self._telling, family)

    @staticmethod
    def _below(end: bytes | None) -> Any:
        from rocksdict import ReadOptions

        bounds = ReadOptions()
        if end is not None:
            bounds.set_iterate_upper_bound(end)
        return bounds

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key; None if the key does not exist.

        Raises: FormatError if it cannot be read.
        """
        if family not in self.families:
            return None
        with self._telling(family):
            value: bytes | None = self._family(family).get(key)
            return value

    @contextmanager
    def _telling(self, family: str) -> Iterator[None]:
        """Turn an exception of the library into a FormatError: the library has no exception type
        for damage.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001
            raise _damaged(self.folder, self._shadow.name, error, family) from None

    def _family(self, name: str) -> Any:  # the library's types do not know keys that are bytes
        if name not in self._handles:
            self._handles[name] = self._base.get_column_family(name)
        return self._handles[name]


class Cursor:
    """A position among the keys of a family.

    ``key`` is None after the last key and before the first one. The methods raise FormatError at a
    damaged block. To continue after the block, create a new cursor.
    """

    def __init__(self, cursor: Any, telling: Callable[[str], AbstractContextManager[None]],
                 family: str) -> None:
        self._cursor, self._telling, self._family = cursor, telling, family
        self.key: bytes | None = None

    def seek(self, start: bytes) -> bytes | None:
        """Move to the first key at or after ``start``."""
        return None if self._cursor is None else self._moved(self._cursor.seek, start)

    def next(self) -> bytes | None:
        return self._moved(self._cursor.next)

    def previous(self) -> bytes | None:
        """Move to the previous key, or from the end to the last key."""
        return self._moved(self._cursor.prev if self._cursor.valid() else self._cursor.seek_to_last)

    def value(self) -> bytes:
        value: bytes = self._cursor.value()
        return value

    def _moved(self, move: Callable[..., None], *where: bytes) -> bytes | None:
        cursor = self._cursor
        move(*where)
        self.key = cursor.key() if cursor.valid() else None
        if self.key is None:  # at the end, or at a damaged block
            with self._telling(self._family):
                cursor.status()
        return self.key


def _opened(folder: str, shadow: str, tables: int, damage: list[str]) -> tuple[Rdict, list[str]]:
    """Return (opened database, names of its column families); add sentences to ``damage``."""
    from rocksdict import AccessType, DBRecoveryMode, Options, Rdict

    # A read-only database must never be created, and must not exceed the open file limit.
    def options(mode: Any) -> Options:
        opened = Options(raw_mode=True)
        opened.create_if_missing(False)
        opened.set_max_open_files(-1 if tables <= _OPEN_TABLES else _OPEN_TABLES)
        opened.set_wal_recovery_mode(mode)
        return opened

    def opened(mode: Any) -> Rdict:
        return Rdict(shadow, options(mode), {name: options(mode) for name in families},
                     AccessType.read_only(False))

    # Read strictly first, so that damage is reported; then read as the broker does.
    try:
        families = Rdict.list_cf(shadow)
        try:
            return opened(DBRecoveryMode.absolute_consistency()), families
        except Exception as strict:  # noqa: BLE001  next as a broker does it: what is sound
            base = opened(DBRecoveryMode.skip_any_corrupted_record())
            damage.append("a write-ahead log (*.log) is damaged or ends in the middle of a record "
                          f"({_library_text(strict, folder, shadow)}); the rest is read")
            return base, families
    except Exception as error:  # noqa: BLE001
        # A file that disappears was deleted by the broker; this is not damage.
        if "No such file" in str(error):
            raise VanishedError(_library_text(error, folder, shadow)) from None
        raise _damaged(folder, shadow, error) from None


def _damaged(folder: str, shadow: str, error: Exception, family: str = "") -> FormatError:
    where = f"column family {family}: " if family else ""
    return FormatError(f"the database is damaged: {where}{_library_text(error, folder, shadow)}",
                       file=folder)


def _library_text(error: Exception, folder: str, shadow: str) -> str:
    """Return the library's message on one line; names of temporary files are replaced by the names
    of the files in the store.
    """
    return " ".join(str(error).replace(shadow, folder).split())
