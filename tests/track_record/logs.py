"""Stores whose commitlog is damaged, cut, or holds what is not its own."""

from __future__ import annotations

import zlib
from pathlib import Path

from rmqctl.formats.local import append_crc, message
from tests.support import damage
from tests.track_record import anatomy
from tests.track_record.case import Case

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


def _in_newest_file(root: Path, share: float) -> anatomy.Placed:
    """The message that far into the newest file with messages."""
    records = anatomy.records(root)
    newest = [record for record in records if record.file == records[-1].file]
    return newest[int(len(newest) * share)]


def magic_of_text(root: Path) -> None:
    """The magic of the report, 0x696e4d73, is text: "inMs"."""
    record = _in_newest_file(root, 0.5)
    damage.write(root, record.file, record.position + 4, b"inMs")


def shifted_by_another_history(root: Path) -> None:
    """A slave kept a message which its master lost, and went on with the master's new bytes.

    The old message ends in the middle of the master's new one: from there to the next message
    nothing fits. The slave's queues know the old message and nothing behind it.
    """
    record = next(message for message in anatomy.records(root)
                  if message.start >= _in_newest_file(root, 0.3).start and message.size >= 300)
    whole = message.decode(anatomy.raw(root, record))
    whole.body, whole.properties = b"written by the old master", b""
    whole.body_crc = zlib.crc32(whole.body) & message.CRC_MASK
    whole.total_size = message.size_of(whole.sys_flag, whole.magic, len(whole.body),
                                       len(whole.topic), 0)
    old = message.build(whole)
    assert len(old) < record.size
    damage.write(root, record.file, record.position, old)
    anatomy.forget_rows(root, lambda row: row.physical_offset > record.start)
    row = next(row for row in anatomy.rows(root) if row.physical_offset == record.start)
    damage.cq_set(root, row.file, row.number, size=len(old), tags_code=0)


def middle_file_missing(root: Path) -> None:
    files = anatomy.log_files(root)
    damage.remove(root, files[len(files) // 2])


def broken_half_message(root: Path) -> None:
    half = [record for record in anatomy.records(root) if record.topic == HALF_TOPIC]
    message = half[len(half) // 2]
    damage.zero(root, message.file, message.position, 64)


def properties_never_written(root: Path) -> None:
    """The last message up to the end of its topic; zeros from the properties on."""
    record = anatomy.records(root)[-1]
    length = len(message.decode(anatomy.raw(root, record)).properties)
    damage.zero(root, record.file, record.position + record.size - length, length)


def no_crc_in_properties(root: Path) -> None:
    """The name of the property that holds the CRC is gone, its digits are there."""
    record = _in_newest_file(root, 0.5)
    damage.write(root, record.file, record.position + record.size - append_crc.SIZE, b"__OLDCRC")


def crc_of_zero(root: Path) -> None:
    """A message whose CRC is 0, by the choice of its born host's address."""
    record = _in_newest_file(root, 0.5)
    data = bytearray(anatomy.raw(root, record))
    data[anatomy.BORN_ADDRESS:anatomy.BORN_ADDRESS + 4] = _address_for_crc_0(bytes(data))
    data[-append_crc.SIZE:] = append_crc.build(0)
    assert append_crc.verify(bytes(data))
    damage.write(root, record.file, record.position, bytes(data))


def _address_for_crc_0(record: bytes) -> bytes:
    """The four bytes that make the CRC of a record (31 bits) 0: CRC-32 is linear in each bit."""
    def crc(address: int) -> int:
        data = bytearray(record)
        data[anatomy.BORN_ADDRESS:anatomy.BORN_ADDRESS + 4] = address.to_bytes(4, "big")
        return append_crc.compute(bytes(data))

    wanted = crc(0)
    # Gauss over GF(2): each bit of the address turns some bits of the CRC.
    basis: list[tuple[int, int]] = []
    for bit in range(32):
        effect, address = crc(1 << bit) ^ wanted, 1 << bit
        for other, its in basis:
            if effect ^ other < effect:
                effect, address = effect ^ other, address ^ its
        if effect:
            basis.append((effect, address))
            basis.sort(reverse=True)
    count = 0
    for effect, address in basis:
        if wanted ^ effect < wanted:
            wanted, count = wanted ^ effect, count ^ address
    return count.to_bytes(4, "big")


def stale_records_behind_the_end(root: Path) -> None:
    """Three messages of an earlier life of the file, right behind the last one."""
    records = anatomy.records(root)
    last = records[-1]
    stale = b"".join(anatomy.raw(root, record) for record in records[:3])
    damage.write(root, last.file, last.position + last.size, stale)


def truncated_in_memory_only(root: Path) -> None:
    """The last twenty messages are cut off, but only the queues know it."""
    end = anatomy.records(root)[-20].start
    anatomy.forget_rows(root, lambda row: row.physical_offset >= end)


CASES = (
    Case(
        289, "illegal-magic", "A magic code that is text",
        "The master crashed, and its slave (3.2.6) logs \"found a illegal magic code 0x696e4d73\" "
        "without end. After a restart the message is gone. What happened to the log?",
        "The magic of one message in the newest file is 0x696e4d73.",
        "4.9.3/crash-live/before", magic_of_text, ("record-damaged",)),
    Case(
        6767, "slave-with-another-history", "A slave's log does not fit its master's",
        "The master's machine crashed and came back; its slave (4.9.3) goes on receiving the log, "
        "but its consumequeues stand still, with \"found a illegal magic code\" for ever.",
        "As the thread suggests: the slave has a message which the master lost, and then the "
        "master's new bytes, from the middle of a message on. The index here is newer than the "
        "queues; the slave's was not.",
        "4.9.3/crash-live/before", shifted_by_another_history,
        ("cq-behind", "index-entry", "record-damaged")),
    Case(
        2140, "middle-file-missing", "A commitlog file in the middle is missing",
        "Messages cannot be consumed: of three commitlog files the second is gone, and nobody "
        "deleted it.",
        "The same: one file of the middle of the log is missing.",
        "5.3.3/basic/store", middle_file_missing, ("file-missing",)),
    Case(
        1568, "broken-half-message", "A broken half message",
        "Transaction checks (4.3.1) fail once a minute with a NullPointerException for the same "
        "batch of half messages, because one of them cannot be decoded; no later one is ever "
        "looked at.",
        "The first 64 bytes of one half message are zero. What broke the user's is not told.",
        "4.9.3/transaction/store", broken_half_message, ("zero-gap",)),
    Case(
        7437, "properties-never-written", "The last message has no properties",
        "A broker (5.1.5) went down while it wrote a message: the body is there, the properties "
        "at the end are zeros. The body's CRC fits, recovery accepts it, and timer messages "
        "are blocked by it.",
        "The last message of the log, with zeros for properties.",
        "5.3.3/crash-live/before", properties_never_written, ("property-damaged",)),
    Case(
        9852, "no-crc-in-properties", "No CRC in the properties",
        "\"Failed to check message CRC, not found CRC in properties\", and nothing that would let "
        "one see why: the user asks for the whole message in hexadecimal.",
        "A log with `enabledAppendPropCRC`; the name of the CRC property of one message is "
        "overwritten.",
        "5.3.3/appendcrc/store", no_crc_in_properties, ("property-crc-missing",), ("5.3.3",),
        shows=("dump store/commitlog/00000000000000098304 --at 19908 --hex -v -o jsonl",)),
    Case(
        9121, "crc-of-zero", "A message whose CRC is 0",
        "A sound message whose CRC32 happens to be 0 is taken for damaged when the broker starts, "
        "and everything behind it is cut off.",
        "A log with `enabledAppendPropCRC` and a message made so that its CRC is 0. It is sound: "
        "nothing must be found.",
        "5.3.3/appendcrc/store", crc_of_zero, (), ("5.3.3",)),
    Case(
        10017, "stale-records", "Intact stale messages after the end of the log",
        "Old data of a reused commitlog file passes magic and CRC, but says another physical "
        "offset; abnormal recovery takes it for the log's continuation.",
        "Three whole messages of the first file stand behind the last one of the log.",
        "5.3.3/crash-live/before", stale_records_behind_the_end, ("garbage-tail", "torn-tail")),
    Case(
        10666, "truncated-in-memory-only", "A truncation that is not on the disk",
        "A slave truncates its log, but only the positions in memory move: after a crash the "
        "messages behind the cut are found again, whole and with fitting offsets.",
        "The consumequeues are cut, the log is not. From the files alone nobody can tell this "
        "from messages that were not dispatched yet.",
        "5.3.3/crash-base/store", truncated_in_memory_only, ("cq-behind",)),
)
