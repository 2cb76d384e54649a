"""Sparse files: finding their data, copying with holes, comparing."""

from __future__ import annotations

import hashlib
import os

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import FILE_MODE, write_all
from rmqctl.scan.frames import used_length
from rmqctl.scan.holes import data_ranges
from rmqctl.scan.source import FileSource

BLOCK = 1 << 20
"""Number of bytes that are read at once."""
_DIGESTED = 64 << 10


def copy_sparse(source: str, target: str) -> None:
    """Copy a file's data and times, keeping holes. Nothing is fsynced.

    An existing ``target`` gets new content.

    Raises: OSError, StoreIOError if ``source`` shrinks meanwhile.
    """
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        about = os.fstat(reading)
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            os.ftruncate(writing, about.st_size)
            for start, end in data_ranges(reading, 0, about.st_size):
                position = start
                while position < end:
                    part = os.pread(reading, min(BLOCK, end - position), position)
                    if not part:
                        raise StoreIOError(f"{source}: shrank while it was copied")
                    write_all(writing, part, position, target)
                    position += len(part)
            os.utime(writing, ns=(about.st_atime_ns, about.st_mtime_ns))
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def content_digest(path: str) -> str:
    """Return a digest of a file's bytes; copies have the same digest, whatever their holes, times
    and inodes.

    Raises: StoreIOError, also if it is not a regular file.
    """
    with FileSource(path) as source:
        digest = hashlib.blake2b(str(source.size).encode(), digest_size=16)
        position = 0
        while (used_from := source.next_data(position)) < source.size:
            position = max(position, used_from // _DIGESTED * _DIGESTED)
            data = source.read(position, _DIGESTED)
            if used := used_length(data):
                digest.update(b"%d:%d:" % (position, used) + data[:used])
            position += _DIGESTED
    return digest.hexdigest()


def same_content(first_path: str, other: str) -> bool:
    """Return whether two files have the same bytes.

    Ranges in which both files have a hole are not read. Index files and preallocated consume queue
    files may be mostly holes.

    Raises: StoreIOError, also if one of the files is not a regular file.
    """
    with FileSource(first_path) as first, FileSource(other) as second:
        if first.size != second.size:
            return False
        position = 0
        while (position := min(first.next_data(position),
                               second.next_data(position))) < first.size:
            hole = max(first.next_hole(position), second.next_hole(position))
            length = min(hole - position, BLOCK)
            if first.read(position, length) != second.read(position, length):
                return False
            position += length
        return True
