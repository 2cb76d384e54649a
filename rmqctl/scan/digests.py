"""64-bit digests of the content of each record of a batch, for comparing messages.

Within one process, equal content has equal digests. Different content has equal digests with a
chance of 1 in 2^64, and never if only one number of fixed width differs. In other processes,
digests have no meaning.
"""

from __future__ import annotations

import numpy as np

from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import fixed_field
from rmqctl.scan.frames import Array, Batch, distinct, gather_int

_SEAL = int.from_bytes(props.CRC32.encode("ascii"), "big", signed=True)
_SEPARATOR = ord(props.PROPERTY_SEPARATOR)
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
_NUMBERS = ("body_crc", "flag", "born_timestamp", "store_timestamp", "reconsume_times",
            "born_host.port")


def whole(batch: Batch) -> Array:
    """Return digests (uint64) of the records as they are stored, byte for byte."""
    return _hashes(batch.data.tobytes(), batch.start, batch.column("total_size"))


def content(batch: Batch) -> Array:
    """Return digests (uint64) of the messages' content, independent of where the messages are
    stored.

    The digests do not cover:

    * topic, queue id and queue offset, by which messages are paired;
    * physical offset, store host, offset of the prepared message, record version;
    * the appended property CRC, which covers all of these.

    If the order of the properties differs, the digest differs.
    """
    digests = _mix(np.zeros(len(batch), np.uint64),
                   batch.column("sys_flag") & ~sysflag.STORE_HOST_V6)
    for name in _NUMBERS:
        digests = _mix(digests, batch.column(name))
    digests = _mix(digests, _born_addresses(batch))
    # Slices of bytes: a view of numpy memory cannot be hashed.
    data = batch.data.tobytes()
    for start, length in ((batch.column("body_start"), batch.column("body_length")),
                          (batch.column("properties_start"), compared_length(batch))):
        digests = _mix(digests, _hashes(data, start, length).view(np.int64))
    return digests


def compared_length(batch: Batch) -> Array:
    """Return the length of each properties string for comparison.

    The length excludes an appended CRC (commitlog.md §5.4) and the separator at the end, which only
    some versions write.
    """
    length = batch.column("properties_length").copy()
    rows = np.flatnonzero(length >= append_crc.SIZE)
    if len(rows):
        end = batch.column("properties_start")[rows] + length[rows]
        sealed = gather_int(batch.data, end - append_crc.SIZE, "i8") == _SEAL
        length[rows[sealed]] -= append_crc.SIZE
    rows = np.flatnonzero(length)
    last = batch.data[batch.column("properties_start")[rows] + length[rows] - 1]
    length[rows[last == _SEPARATOR]] -= 1
    return length


def _mix(digests: Array, value: Array) -> Array:
    """Mix a column (int64) into the digests; a bijection in ``value``."""
    mixed: Array = (digests ^ value.view(np.uint64)) * _PRIME
    mixed ^= mixed >> _SHIFT
    return mixed


def _hashes(data: bytes, start: Array, length: Array) -> Array:
    """Return Python's own hash (64 bits, with a key of this process) of each slice of ``data``."""
    slices = map(slice, start.tolist(), (start + length).tolist())
    hashes = np.fromiter(map(hash, map(data.__getitem__, slices)), np.int64, len(start))
    return hashes.view(np.uint64)


def _born_addresses(batch: Batch) -> Array:
    """Return the born address of each record as a number (int64); the two halves of an IPv6 address
    are combined.
    """
    bits = batch.column("sys_flag") & sysflag.BORN_HOST_V6
    out: Array = np.zeros(len(batch), np.int64)
    for host_bits in distinct(bits).tolist():
        address = fixed_field("born_host.address", host_bits)
        rows = np.flatnonzero(bits == host_bits)
        start = batch.start[rows] + address.offset
        if address.size == 4:
            out[rows] = gather_int(batch.data, start, "i4")
        else:
            high = _mix(np.zeros(len(rows), np.uint64), gather_int(batch.data, start, "i8"))
            out[rows] = _mix(high, gather_int(batch.data, start + 8, "i8")).view(np.int64)
    return out
