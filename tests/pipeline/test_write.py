"""``df.write.format("rocketmq")``: the engine's bytes come back, and nothing is ever half done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqctl.store import Store
from rmqctl.store.objects import message_object
from tests.support import replay
from tests.support.share import sample

SETS = ["4.9.3/basic", "4.9.3/transaction", "5.3.3/basic", "5.3.3/ipv6", "5.3.3/lmq",
        "5.3.3/v2topic", "5.3.3/batchcq", "4.9.3/delay", "4.9.3/ipv6", "4.9.3/batch", "4.9.3/lmq",
        "5.3.3/delay", "5.3.3/batch", "5.3.3/transaction", "5.3.3/appendcrc"]
NEEDED = ("topic string, body binary, queue_id int, queue_offset long, sys_flag int, "
          "born_timestamp timestamp, born_host string, store_timestamp timestamp, "
          "store_host string, properties_raw string, physical_offset long, magic string, flag int, "
          "reconsume_times int, prepared_transaction_offset long, body_crc int")


@pytest.fixture(scope="module")
def rocketmq(spark):
    from rmqctl.ext.spark import register

    register(spark)
    return spark


def read(spark, *stores, schema: str | None = None):
    reader = spark.read.format("rocketmq")
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load([str(store) for store in stores] if len(stores) > 1 else str(stores[0]))


def write(frame, target, mode: str = "append", **options):
    frame.write.format("rocketmq").mode(mode).options(**options).save(str(target))


def sizes_of(folder: Path, version: str) -> dict[str, str]:
    settings = replay.settings_of(folder, version)
    return {"brokerVersion": version, "commitlogFileSize": str(settings.commitlog_file_size),
            "consumequeueFileSize": str(settings.consumequeue_file_size),
            "batchConsumequeueFileSize": str(settings.batch_consumequeue_file_size),
            "indexSlots": str(settings.index_slots), "indexMax": str(settings.index_max),
            "diskWatermark": "100%"}


def messages(root) -> list[dict]:
    from rmqctl.formats.local.message import decode

    with Store.open(str(root)) as store:
        return [message_object(decode(batch.bytes_at(number)), body="base64")
                for batch in store.log.walk() for number in range(len(batch))]


def leftovers(target: Path) -> list[str]:
    return [name for name in os.listdir(target.parent) if name.startswith(f"{target.name}.rmqctl")]


@pytest.mark.parametrize("name", sample(SETS, 2, "stores written by Spark"))
def test_a_store_read_and_written_is_the_engines(rocketmq, golden, tmp_path, name):
    folder, target = golden(name), tmp_path / "new"
    frame = read(rocketmq, folder / "store", schema=NEEDED)
    write(frame.repartition(3), target, **sizes_of(folder, name.split("/")[0]))
    assert replay.contents(target) == replay.contents(folder / "store")
    assert not leftovers(target)


def test_from_whole_records_in_any_order_with_duplicate_attempts(rocketmq, golden, tmp_path):
    """The column ``record`` alone is enough; rows of many partitions lie over each other."""
    folder, target = golden("5.3.3/basic"), tmp_path / "new"
    frame = read(rocketmq, folder / "store", schema="record binary")
    frame = frame.repartition(7).sortWithinPartitions("record", ascending=False)
    write(frame, target, mode="overwrite", **sizes_of(folder, "5.3.3"))
    assert replay.contents(target) == replay.contents(folder / "store")


def test_messages_are_put_in_order_of_partition_and_row(rocketmq, tmp_path):
    from pyspark.sql import functions as f

    frame = rocketmq.range(300, numPartitions=3).select(
        f.when(f.col("id") % 2 == 0, "even").otherwise("odd").alias("topic"),
        f.format_string("body %d", "id").alias("body"), (f.col("id") % 4).cast("int").alias(
            "queue_id"), f.lit("A").alias("tags"),
        f.array(f.format_string("k%d", "id")).alias("keys"),
        f.create_map(f.lit("colour"), f.lit("red")).alias("properties"))
    target = tmp_path / "new"
    write(frame, target, brokerVersion="4.9.3", commitlogFileSize="16KiB", indexSlots="100",
          indexMax="400", consumequeueFileSize="6000")
    listed_messages = messages(target)
    assert [message["body"] for message in listed_messages] == [
        message_body(f"body {number}") for number in range(300)]
    assert {(message["topic"], message["queue_id"]) for message in listed_messages} == {
        ("even", 0), ("even", 2), ("odd", 1), ("odd", 3)}
    for number, message in enumerate(listed_messages):
        assert message["tags"] == "A"
        assert message["keys"] == [f"k{number}"]
        assert message["properties"]["colour"] == "red"
        assert message["queue_offset"] == number // 4
        assert message["properties"]["CLUSTER"] == "DefaultCluster"
    assert len(os.listdir(target / "commitlog")) > 2
    assert not (target / "abort").exists()


def message_body(text: str) -> str:
    import base64

    return base64.b64encode(text.encode()).decode()


def test_the_new_store_is_sound(rocketmq, tmp_path, rmqctl):
    frame = rocketmq.createDataFrame([("t", b"x" * 100, ["k"])] * 50,
                                     "topic string, body binary, keys array<string>")
    write(frame, tmp_path / "new", indexSlots="10", indexMax="100")
    rmqctl("verify", tmp_path / "new").expect(0)


@pytest.mark.exhaustive
def test_no_row_at_all_makes_an_empty_store(rocketmq, tmp_path, rmqctl):
    write(rocketmq.createDataFrame([], "topic string, body string"), tmp_path / "new")
    assert messages(tmp_path / "new") == []
    rmqctl("verify", tmp_path / "new").expect(0)


REFUSED = {
    "strange column": ("topic string, body string, tag string", {}, "no column tag"),
    "no body": ("topic string", {}, "missing column: body"),
    "not recorded": ("topic string, body string", {"asRecorded": "true"}, "requires these columns"),
    "unknown option": ("topic string, body string", {"commitlogSize": "1"}, "unknown option"),
    "no size": ("topic string, body string", {"commitlogFileSize": "big"}, "invalid size"),
    "no version": ("topic string, body string", {"brokerVersion": "3.2"}, "3.2"),
    "too small": ("topic string, body string", {"commitlogFileSize": "10"}, "too small"),
}


@pytest.mark.parametrize("case", sample(REFUSED, 1, "refused by df.write"))
def test_what_cannot_be_is_refused_before_any_task_runs(rocketmq, tmp_path, case):
    schema, options, words = REFUSED[case]
    with pytest.raises(Exception, match=words):
        write(rocketmq.createDataFrame([], schema), tmp_path / "new", **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", sample(["append", "overwrite", "errorifexists"], 1, "modes"))
def test_an_existing_store_is_never_touched(rocketmq, golden_copy, mode):
    store = golden_copy("4.9.3/basic/store")
    before = replay.contents(store)
    with pytest.raises(Exception, match="exists|ErrorIfExists"):
        write(rocketmq.createDataFrame([("t", "b")], "topic string, body string"), store, mode)
    assert replay.contents(store) == before
    assert not leftovers(store)


@pytest.mark.exhaustive
def test_a_task_that_fails_leaves_nothing(rocketmq, golden, tmp_path):
    from pyspark.sql import functions as f

    frame = read(rocketmq, golden("4.9.3/basic/store"), schema=NEEDED).withColumn(
        "body", f.expr("if(physical_offset > 5000, cast('other' as binary), body)"))
    with pytest.raises(Exception, match="body CRC mismatch"):
        write(frame.repartition(2), tmp_path / "new")
    assert os.listdir(tmp_path) == []


def test_a_commit_that_fails_leaves_nothing(rocketmq, tmp_path):
    """The queue id reaches the engine only in the commit, which refuses it."""
    frame = rocketmq.createDataFrame([("t", "b", 0), ("t", "b", -1)],
                                     "topic string, body string, queue_id int")
    with pytest.raises(Exception, match="queue"):
        write(frame.coalesce(1), tmp_path / "new")
    assert os.listdir(tmp_path) == []
