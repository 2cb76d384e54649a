"""getMessage against the engine's own answers, and the answers no golden store asks for."""

from __future__ import annotations

import pytest

from rmqctl.broker.get_message import Answer, get_message, meaning
from rmqctl.broker.versions import version_for
from rmqctl.broker.view import broker_view, view_of
from rmqctl.store import Store
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.compaction import CompactionQueue
from tests.conftest import GoldenFolder
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores

JUDGED = [pytest.param(golden_store, id=golden_store.id)
          for golden_store in golden_sets.judged_stores()]


def opened(store: golden_sets.GoldenStore, golden: GoldenFolder) -> Store:
    return Store.open(golden(store.id), store.dirs)


@pytest.mark.parametrize("store", JUDGED)
def test_answers_are_the_engines(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    expect = store.load_expect(golden(store.set.id))
    asked = 0
    with opened(store, golden) as opened_store:
        view = broker_view(opened_store, version_for(int(expect.engine[0])))
        for queue in expect.queues:
            for pull in queue.pulls:
                message = get_message(view, queue.topic, queue.queue_id, pull.offset, 5)
                assert message == Answer(pull.status, pull.next_begin, pull.min, pull.max,
                                         pull.physical_offsets), (queue.id, pull.offset)
                asked += 1
    assert asked


def test_compacted_messages_are_those_kept(golden: GoldenFolder) -> None:
    store = golden_sets.GoldenStore(golden_sets.GoldenSet("5.3.3", "compaction"), "store")
    expect = store.load_expect(golden(store.set.id))
    compacted = [queue for queue in expect.queues if expect.is_compacted(queue.topic)]
    assert compacted
    with opened(store, golden) as opened_store:
        for queue in compacted:
            kept = CompactionQueue.open(opened_store, queue.topic, queue.queue_id)
            assert kept is not None
            with kept:
                records = [kept.record(unit) for units in kept.files for unit in units]
            assert [(record.queue_offset, record.physical_offset, record.total_size)
                    for record in records if record is not None] == [
                (message.queue_offset, message.physical_offset, message.size)
                for message in queue.messages]
        assert CompactionQueue.open(opened_store, "nix", 0) is None
        assert CompactionQueue.open(opened_store, "../consumequeue", 0) is None


@pytest.fixture
def many(tmp_path_factory: pytest.TempPathFactory) -> tiny_stores.Tiny:
    """50 messages of 1,100 bytes in one queue; three rows to a consumequeue file."""
    specs = [tiny_stores.Spec("t", 0, b"x" * 1000, raw_properties="") for _ in range(50)]
    return tiny_stores.build(tmp_path_factory.mktemp("many") / "store", specs,
                             commitlog_file_size=4096, consumequeue_file_size=1000)


def test_limits_of_one_answer(many: tiny_stores.Tiny) -> None:
    places = [message.start for message in many.messages]
    with Store.open(many.root) as opened:
        view = broker_view(opened)
        assert get_message(view, "t", 0, 0, 100).offsets == tuple(places[:32])
        assert get_message(view, "t", 0, 3, 1) == Answer("FOUND", 4, 0, 50, (places[3],))
        # An answer ends with its consumequeue file of 50 rows.
        assert get_message(view, "t", 0, 45, 32).next_begin == 50


@pytest.mark.parametrize("generation", [4, 5])
@pytest.mark.parametrize("view", ["disk", "broker"])
def test_records_that_are_gone(generation: int, view: str, many: tiny_stores.Tiny) -> None:
    """The log's first two files have expired, the consumequeue has not been told yet."""
    files = many.files("commitlog")
    for file in files[:2]:
        damage.remove(many.root, file)
    kept = next(number for number, message in enumerate(many.messages) if message.start >= 8192)
    with Store.open(many.root) as opened:
        answer = get_message(view_of(opened, view, version_for(generation)), "t", 0, 0, 5)
    assert answer == Answer("OFFSET_TOO_SMALL", kept, kept, 50)


def test_a_missing_file_in_the_middle_is_passed_over(many: tiny_stores.Tiny) -> None:
    damage.remove(many.root, many.files("commitlog")[1])
    gone = [number for number, message in enumerate(many.messages) if 4096 <= message.start < 8192]
    with Store.open(many.root) as opened:
        answer = get_message(View(opened), "t", 0, gone[0], 2)
        assert answer.status == "FOUND"
        assert answer.offsets[0] == many.messages[gone[-1] + 1].start
        alone = get_message(View(opened), "t", 0, gone[0] - 1, 2)
        assert alone.offsets == (many.messages[gone[0] - 1].start,
                                 many.messages[gone[-1] + 1].start)


def test_a_missing_consumequeue_file(tiny: tiny_stores.Tiny) -> None:
    """`orders/0` has two files of three rows; without the first one, it starts at row 3."""
    damage.remove(tiny.root, "consumequeue/orders/0/00000000000000000000")
    with Store.open(tiny.root) as opened:
        assert get_message(View(opened), "orders", 0, 1).status == "OFFSET_TOO_SMALL"
        assert get_message(View(opened), "orders", 0, 3).status == "FOUND"


@pytest.mark.parametrize("topic", ["nix", "", "..", "a/b", "a\0b"])
def test_queues_that_are_not_there(topic: str, tiny: tiny_stores.Tiny) -> None:
    with Store.open(tiny.root) as opened:
        answer = get_message(View(opened), topic, 0, 0)
    assert answer == Answer("NO_MESSAGE_IN_QUEUE", 0, 0, 0)


def test_answers_are_put_in_words() -> None:
    for status in ("NO_MESSAGE_IN_QUEUE", "OFFSET_TOO_SMALL", "OFFSET_OVERFLOW_ONE",
                   "OFFSET_OVERFLOW_BADLY", "OFFSET_FOUND_NULL", "MESSAGE_WAS_REMOVING",
                   "NO_MATCHED_MESSAGE"):
        text = meaning(Answer(status, 7, 5, 9), 3)
        assert text.startswith(f"{status}: ")
        assert len(text) > len(status) + 2
    assert "5 to 8" in meaning(Answer("OFFSET_TOO_SMALL", 5, 5, 9), 3)
