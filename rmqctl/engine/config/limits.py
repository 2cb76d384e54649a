"""Which sizes a store can have, and how a broker rounds them."""

from __future__ import annotations

from dataclasses import replace

from rmqctl.engine.config.settings import Settings
from rmqctl.errors import UsageError
from rmqctl.formats.local import batch_consume_queue, consume_queue, consume_queue_ext, delay
from rmqctl.formats.local.index_file import Shape
from rmqctl.store.store_settings import MAX_INT

LEAST_COMMITLOG = 1 << 10
"""Bytes of the smallest commitlog file: the fixed part of a record with IPv6 hosts, the longest
topic a broker takes and the blank at the file's end are 250 of them; the rest is for properties
and a body, without which a store is of no use to anyone."""
LEAST_EXT = consume_queue_ext.HEAD_SIZE + consume_queue_ext.END_BLANK
LEAST_INDEX = 2
"""Number 0 is never used, so an index of one entry would hold none."""


def checked(settings: Settings) -> tuple[Settings, list[str]]:
    """(the settings with sizes rounded up as needed, what was rounded in words). UsageError."""
    profile = settings.profile
    _bounded("a commitlog file", settings.commitlog_file_size, LEAST_COMMITLOG)
    _bounded("a consumequeue file", settings.consumequeue_file_size, 1)
    _bounded("a batch consumequeue file", settings.batch_consumequeue_file_size, 1)
    _bounded("a consumequeue ext file", settings.consumequeue_ext_file_size, LEAST_EXT)
    for what, count in (("slots", settings.index_slots), ("entries", settings.index_max)):
        if count < LEAST_INDEX:
            raise UsageError(f"an index file has at least {LEAST_INDEX} {what}, not {count}")
    size = Shape(settings.index_slots, settings.index_max).file_size
    if size > MAX_INT:
        raise UsageError(f"an index file of {settings.index_slots} slots and {settings.index_max} "
                         f"entries would have {size} bytes, a broker allows {MAX_INT}")
    if settings.append_properties_crc and profile.generation < 5:
        raise UsageError("a CRC is appended from 5.2.0 on, this store is to be for "
                         f"{settings.version}")
    try:
        delay.parse_levels(settings.message_delay_level)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return _rounded(settings)


def _bounded(what: str, size: int, least: int) -> None:
    if size < least:
        raise UsageError(f"{what} of {size} bytes is too small; {least} is the least")
    if size > MAX_INT:
        raise UsageError(f"{what} of {size} bytes is too large; a broker allows {MAX_INT}")


def _rounded(settings: Settings) -> tuple[Settings, list[str]]:
    notes = []
    for name, unit, what in (
            ("consumequeue_file_size", consume_queue.UNIT_SIZE, "consumequeue"),
            ("batch_consumequeue_file_size", batch_consume_queue.UNIT_SIZE, "batch consumequeue")):
        asked = getattr(settings, name)
        size = -(-asked // unit) * unit
        if size != asked:
            _bounded(f"a {what} file", size, unit)
            notes.append(f"a {what} file gets {size} bytes instead of {asked}: it holds whole "
                         f"units of {unit}")
            settings = replace(settings, **{name: size})
    return settings, notes
