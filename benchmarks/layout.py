"""On-disk layouts of the generated store, declared once and used in the whole folder.

All integers are big-endian and signed, hosts are IPv4, message records are version 1.
"""

from __future__ import annotations

import numpy as np

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124
CRC_MASK = 0x7FFFFFFF

NAME_DIGITS = 20  # commitlog and consumequeue files are named by their first byte's offset

MESSAGE_HEADER = np.dtype(
    [
        ("total_size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_ip", ">u4"),
        ("born_port", ">i4"),
        ("store_timestamp", ">i8"),
        ("store_ip", ">u4"),
        ("store_port", ">i4"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_length", ">i4"),
    ]
)
TOPIC_LENGTH = np.dtype(">i1")
PROPERTIES_LENGTH = np.dtype(">i2")
BLANK = np.dtype([("size", ">i4"), ("magic", ">i4")])

CONSUMEQUEUE_UNIT = np.dtype([("phy", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

INDEX_HEADER = np.dtype(
    [
        ("begin_timestamp", ">i8"),
        ("end_timestamp", ">i8"),
        ("begin_phy_offset", ">i8"),
        ("end_phy_offset", ">i8"),
        ("hash_slot_count", ">i4"),
        ("index_count", ">i4"),
    ]
)
INDEX_SLOT = np.dtype(">i4")
INDEX_ENTRY = np.dtype(
    [("key_hash", ">i4"), ("phy", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)

CHECKPOINT = np.dtype(
    [
        ("physic_msg_timestamp", ">i8"),
        ("logics_msg_timestamp", ">i8"),
        ("index_msg_timestamp", ">i8"),
        ("master_flushed_offset", ">i8"),
        ("confirm_phy_offset", ">i8"),
    ]
)
CHECKPOINT_SIZE = 4096


def file_name(offset: int) -> str:
    """Return the name of a commitlog or consumequeue file whose first byte has this offset."""
    return f"{offset:0{NAME_DIGITS}d}"
