"""Stores whose small files are wrong: checkpoint, offsets and topics in JSON, one flag."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from rmqctl.formats.local import message, sysflag
from tests.support import damage
from tests.track_record import anatomy
from tests.track_record.case import Case, as_it_is
from tests.track_record.logs import HALF_TOPIC


def write_config(root: Path, name: str, text: str) -> None:
    """A file of ``config/`` and its backup."""
    (root / "config").mkdir(exist_ok=True)
    damage.config(root, name, text.encode(), backup=text.encode())


def write_topics(root: Path, topics: list[str]) -> None:
    """``topics.json`` with these topics, four queues each."""
    table = {name: {"order": False, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG",
                    "topicName": name, "topicSysFlag": 0, "writeQueueNums": 4} for name in topics}
    write_config(root, "topics.json", json.dumps(
        {"dataVersion": {"counter": 1, "timestamp": 1_584_230_400_000}, "topicConfigTable": table},
        indent="\t"))


def delay_offset_past_the_queue(root: Path) -> None:
    """The offsets of the report's log: 509548460 and 665682360 bytes into the queue."""
    write_config(root, "delayOffset.json",
                 '{\n\t"offsetTable":{3:25477423,4:33284118\n\t}\n}')


def config_of_zeros(root: Path) -> None:
    for name, text in (("delayOffset.json", '{\n\t"offsetTable":{1:2,3:4\n\t}\n}'),
                       ("consumerOffset.json", '{\n\t"offsetTable":{}\n}')):
        write_config(root, name, text)
        damage.config(root, name, bytes(len(text)))


def delay_offset_and_backup_of_zeros(root: Path) -> None:
    write_config(root, "delayOffset.json", "\0" * 21)


def consumer_ahead(root: Path) -> None:
    """A group's offset 1000 behind the last row of a queue."""
    files = anatomy.longest_queue(root)
    _, topic, queue_id = Path(files[0]).parts[:3]
    offset = len(anatomy.rows(root, *files)) + 1000
    write_config(root, "consumerOffset.json",
                 f'{{\n\t"offsetTable":{{\n\t\t"{topic}@billing":{{{queue_id}:{offset}\n\t\t}}\n'
                 "\t}\n}")


def flagged_compressed(root: Path) -> None:
    """A half message with a body that is not compressed."""
    def plain(stored_record: anatomy.Placed) -> bool:
        record = message.decode(anatomy.raw(root, stored_record))
        return not record.sys_flag & sysflag.COMPRESSED and len(record.body) > 0

    half = [record for record in anatomy.records(root) if record.topic == HALF_TOPIC
            and plain(record)]
    stored_message = half[len(half) // 3]
    flag = message.decode(anatomy.raw(root, stored_message)).sys_flag | sysflag.COMPRESSED
    damage.write(root, stored_message.file, stored_message.position + anatomy.SYS_FLAG,
                 struct.pack(">i", flag))


CASES = (
    Case(
        1869, "delay-offset-past-the-queue", "delayOffset.json is past the queue's end",
        "Delayed messages are never delivered; storeerror.log repeats \"Offset not matched. "
        "Request offset: 509548460, firstOffset: 0, lastOffset: 6000000\": the offsets in "
        "delayOffset.json are far behind the schedule queues.",
        "A store with delayed messages, and the report's two offsets.",
        "4.9.3/delay/store", delay_offset_past_the_queue, (), shows=("config store delay",
                                                                 "offsets store")),
    Case(
        3401, "config-of-zeros", "delayOffset.json and consumerOffset.json hold no text",
        "After Windows crashed the broker (4.9.1) does not start: both files are unreadable, \"all "
        "the data represented in other encoding\". The user wrote new ones by hand, and all "
        "offsets were lost. Of a backup, topics.json.bak, they say that it was right.",
        "Both files are zeros, and the backups are good: then a broker starts, and nobody notices. "
        "The user's broker did not start, so one of theirs was not; see #6096.",
        "4.9.3/delay/store", config_of_zeros, ("config-backup",),
        shows=("config store", "config store delay")),
    Case(
        6096, "config-and-backup-of-zeros", "delayOffset.json and its backup hold no text",
        "A broker (4.9.4) on Windows shows nothing and does not start: \"load delayOffset.json "
        "failed, and try to load backup file … syntax error, expect {, actual EOF, pos 21\".",
        "Both files are 21 zeros, which is what gives that message; what the user's backup held is "
        "not told.",
        "4.9.3/delay/store", delay_offset_and_backup_of_zeros, ("config-unreadable",),
        refuses=("4.9.3", "5.3.3")),
    Case(
        551, "consumer-ahead", "A consumer's offset is larger than the queue's",
        "`consumerProgress` shows a consumer offset larger than the broker's, for one broker of "
        "three; the consumers then receive everything again.",
        "One group's offset is 1000 messages past the end of a queue.",
        "4.9.3/basic/store", consumer_ahead, ("config-offset",),
        shows=("offsets store --group billing",)),
    Case(
        1456, "checkpoint-of-zeros", "The checkpoint was never written",
        "A slave that did not end cleanly takes very long to start: nothing on a slave sets the "
        "checkpoint's times, so that recovery begins at the first file.",
        "The golden set made for it: an abort file, and a checkpoint of zeros.",
        "4.9.3/crash-zerocheckpoint/before", as_it_is, ()),
    Case(
        1375, "flagged-compressed", "A message that says it is compressed and is not",
        "The transaction check hangs on \"incorrect header check\": a half message was put back "
        "with an inflated body, but still with the flag that says it is compressed.",
        "One half message has the flag; its body is as it was. Every record is sound.",
        "4.9.3/transaction/store", flagged_compressed, (),
        shows=((f"read store --topic {HALF_TOPIC} --limit 11 --decompress --fields "
                "queue_offset,sys_flag,crc_ok,body_encoding"),)),
)
