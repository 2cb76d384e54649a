"""The layout constants of the compiled kernel, from the construct declarations.

`layout.pxi` is generated from them (``python -m rmqctl.kernel.constants``); a test fails if the
file is stale, and a kernel that was compiled from a different `layout.pxi` is not used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqctl.formats import layout
from rmqctl.formats.fixed import Fixed
from rmqctl.formats.local import append_crc, consume_queue, index_file, message, sysflag
from rmqctl.formats.local import header_rules as rules
from rmqctl.formats.local.message import Message
from rmqctl.formats.local.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rmqctl.formats.tiered import index as tier_index

PXI = Path(__file__).with_name("layout.pxi")


def values() -> dict[str, int]:
    """Return every constant by its name in the kernel: positions and sizes in bytes, magics
    unsigned.
    """
    head = _head_size(0)
    # The fields before the born host are at the same place in every message.
    numbers = {f"{name.upper()}_AT": layout.field(Message, name).offset
             for name in ("total_size", "magic", "body_crc", "flag", "queue_offset",
                          "physical_offset", "sys_flag", "born_timestamp")}
    # The places of the other fields are for IPv4 hosts; IPv6 hosts add a fixed number of bytes.
    numbers |= {
        "START_SIZE": message.START_SIZE,
        "MIN_SIZE": message.MIN_SIZE,
        "HEAD_SIZE": head,
        **{f"{name.upper()}_AT": message.fixed_field(name).offset for name in (
            "store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_length")},
        "BORN_HOST_V6": BORN_HOST_V6,
        "STORE_HOST_V6": STORE_HOST_V6,
        "BORN_HOST_V6_MORE": _head_size(BORN_HOST_V6) - head,
        "STORE_HOST_V6_MORE": _head_size(STORE_HOST_V6) - head,
        "PROPERTIES_LENGTH_SIZE": message.PROPERTIES_LENGTH_SIZE,
        "MAX_PROPERTIES": _largest("properties_length"),
        "MAX_SIZE": _largest("total_size"),
        "CRC_MASK": message.CRC_MASK,
        "INDEX_HEADER_SIZE": index_file.HEADER.size,
        "SEAL_SIZE": append_crc.SIZE,
        "SEAL_DIGITS": append_crc.DIGITS,
    }
    # Valid values of a header, and which messages get entries.
    numbers |= {
        "QUEUE_ID_AT": layout.field(Message, "queue_id").offset,
        "BORN_HOST_AT": numbers["BORN_TIMESTAMP_AT"] + layout.width_of(
            Message, "born_timestamp")[0],
        "ADDRESS_SIZE": layout.size_of(message.HostV4) - layout.width_of(message.HostV4, "port")[0],
        "MOST_PORT": rules.MAX_PORT, "MOST_TIMES": rules.MAX_RECONSUME_TIMES,
        **{f"{name}_SECONDS": getattr(rules, name) // 1000
           for name in ("EARLIEST", "YEARS", "HALF_A_YEAR", "LONG_PAUSE")},
        "TIME_SLACK": rules.TIME_SLACK,
        "KIND_BITS": rules.KIND, "KIND_MOST": rules.MAX_KIND, "COMPRESSED": sysflag.COMPRESSED,
        "KNOWN_FLAGS": sysflag.KNOWN_BITS, "TRANSACTION_MASK": sysflag.TRANSACTION_MASK,
        "TRANSACTION_PREPARED": sysflag.TRANSACTION_PREPARED,
        "TRANSACTION_ROLLBACK": sysflag.TRANSACTION_ROLLBACK,
    }
    # Records of one fixed size: the size, and the place of each field.
    units: dict[str, Fixed[Any]] = {
        "UNIT": consume_queue.UNIT, "ENTRY": index_file.ENTRY, "SLOT": index_file.SLOT,
        "ITEM": tier_index.ITEM, "COMPACTED_ITEM": tier_index.COMPACTED_ITEM}
    for prefix, unit in units.items():
        numbers[f"{prefix}_SIZE"] = unit.size
        numbers |= {f"{prefix}_{name.upper()}_AT": unit.field(name).offset
                  for name in unit.dtype().names or ()}
    # Message versions differ in the magic and in the width of the topic length.
    for magic, name in message.VERSIONS.items():
        numbers[f"MAGIC_{name.upper()}"] = magic
        numbers[f"TOPIC_LENGTH_SIZE_{name.upper()}"] = layout.width_of(
            Message, "topic_length", magic=magic)[0]
    return numbers


def _head_size(host_bits: int) -> int:
    return layout.prefix_size(Message, sys_flag=host_bits, magic=message.MAGIC_V1)


def _largest(name: str) -> int:
    return (1 << 8 * layout.width_of(Message, name)[0] - 1) - 1


def text() -> str:
    """Return the content of `layout.pxi`."""
    return "\n".join([
        "# Made from the declarations in rmqctl/formats: python -m rmqctl.kernel.constants", "",
        "cdef enum:", *(f"    {name} = {value:#x}" if name.startswith("MAGIC_V") else
                        f"    {name} = {value}" for name, value in values().items()), ""])


if __name__ == "__main__":
    PXI.write_text(text())
