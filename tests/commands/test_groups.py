"""What a group has not consumed: ``read --group G --unconsumed``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Runner
from tests.support import damage, retried
from tests.support import tiny as tiny_stores


def unconsumed(rmqctl: Runner, root: Path, group: str, *more: str, code: int = 0) -> list[str]:
    """The bodies of what is shown."""
    done = rmqctl("read", root, "--group", group, "--unconsumed", "-o", "jsonl", *more)
    return [row["body"] for row in done.expect(code).jsonl()]


def set_offsets(root: Path, **changes: object) -> None:
    table = {**retried.OFFSETS, **changes}
    path = root / "config" / "consumerOffset.json"
    path.write_text(json.dumps({"offsetTable": table}))


def test_from_each_position_to_the_end(retried_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    assert unconsumed(rmqctl, retried_base.root, "billing") == ["third", "fourth"]
    assert unconsumed(rmqctl, retried_base.root, "audit") == ["second", "third", "fourth"]


def test_narrowed(retried_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    root = retried_base.root
    assert unconsumed(rmqctl, root, "billing", "--topic", retried.RETRY) == ["third"]
    assert unconsumed(rmqctl, root, "audit", "--topic", "orders", "--queue", "1") == ["third"]
    assert unconsumed(rmqctl, root, "audit", "--count", "1") == ["second"]
    assert unconsumed(rmqctl, root, "audit", "--key", "k5") == ["fourth"]


def test_a_queue_without_a_position_is_named(retried_base: tiny_stores.Tiny,
                                             rmqctl: Runner) -> None:
    done = rmqctl("read", retried_base.root, "--group", "audit", "--unconsumed").expect(0)
    assert "no consumer offset in orders/1" in done.err
    assert "orders/0" not in done.err


def test_the_retry_topic_is_read_without_a_position_too(retried: tiny_stores.Tiny,
                                                        rmqctl: Runner) -> None:
    set_offsets(retried.root, **{"%RETRY%billing@billing": {}})
    assert unconsumed(rmqctl, retried.root, "billing") == ["first", "third", "fourth"]


def test_positions_beyond_both_ends(tmp_path: Path, rmqctl: Runner) -> None:
    built = tiny_stores.build(tmp_path / "store", retried.SPECS * 2, commitlog_file_size=2048,
                              index_max=64, expired_files=1)
    set_offsets(built.root, **{"orders@billing": {0: 1, 1: 77}})
    done = rmqctl("read", built.root, "--group", "billing", "--unconsumed").expect(0)
    assert "orders/1: the consumer offset 77 is beyond the end of the queue, 2" in done.err
    assert ("orders/0: 2 unconsumed messages are no longer in the log, from queue offset 1 on"
            in done.err)


@pytest.mark.parametrize(("group", "expected_text"), [
    ("biling", "did you mean billing?"), ("stock", "broadcasts"), ("(delay)", "delay service")])
def test_a_group_of_which_nothing_can_be_told(retried_base: tiny_stores.Tiny, rmqctl: Runner,
                                              group: str, expected_text: str) -> None:
    done = rmqctl("read", retried_base.root, "--group", group, "--unconsumed").expect(1)
    assert expected_text in done.err
    assert not done.out


def test_a_topic_it_does_not_read(retried_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    done = rmqctl("read", retried_base.root, "--group", "billing", "--unconsumed", "--topic",
                  "order").expect(1)
    assert "did you mean orders?" in done.err


def test_positions_that_cannot_be_read(retried: tiny_stores.Tiny, rmqctl: Runner) -> None:
    damage.config_both_bad(retried.root, "consumerOffset.json")
    done = rmqctl("read", retried.root, "--group", "nobody", "--unconsumed").expect(1)
    assert "is unknown" in done.err


def test_the_options_go_together(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    rmqctl("read", tiny_base.root, "--group", "billing").expect(2)
    rmqctl("read", tiny_base.root, "--unconsumed").expect(2)
    rmqctl("read", tiny_base.root, "--group", "billing", "--unconsumed", "--topic", "orders",
           "--queue", "0", "--offset", "1").expect(2)
