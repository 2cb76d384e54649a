"""``rmqctl config`` as a user meets it: what is shown, what is said, the exit code."""

from __future__ import annotations

import csv
import io

from tests.conftest import Runner
from tests.support import damage
from tests.support import tiny as tiny_stores


def test_listing(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    done = rmqctl("config", tiny_base.root, "-o", "json").expect(0)
    assert [(row["file"], row["kind"], row["state"], row["source"], row["entries"])
            for row in done.json()] == [
        (f"config/{name}", kind, "ok", f"config/{name}", entries) for name, kind, entries in (
            ("topics.json", "topics", 2), ("consumerOffset.json", "offsets", 2),
            ("delayOffset.json", "delay", 2))]
    assert done.err == ""


def test_sections(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    topics = rmqctl("config", tiny_base.root, "topics", "-o", "json").expect(0).json()
    assert [(row["topic"], row["read_queue_nums"], row["perm"], row["perm_bits"])
            for row in topics] == [("orders", 2, "RW-", 6), ("bills", 2, "RW-", 6)]
    table = rmqctl("config", tiny_base.root, "offsets", "-o", "csv").expect(0).out
    assert list(csv.reader(io.StringIO(table)))[1] == [
        "billing", "orders", "0", "2", "config/consumerOffset.json"]
    delays = rmqctl("config", tiny_base.root, "delay", "-o", "jsonl").expect(0).jsonl()
    assert [(row["level"], row["delay_ms"], row["offset"]) for row in delays] == [
        (1, 1000, 0), (3, 10_000, 1)]


def test_the_backup_is_shown_and_named(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    damage.config_truncated(tiny.root, "topics.json", 90)
    done = rmqctl("config", tiny.root, "topics", "-o", "json").expect(1)
    assert [row["source"] for row in done.json()] == ["config/topics.json.bak"] * 2
    assert "config/topics.json @" in done.err
    assert "showing config/topics.json.bak" in done.err
    rows = rmqctl("config", tiny.root, "-o", "json").expect(1).json()
    assert [(row["state"], row["offset"] is not None) for row in rows] == [
        ("unreadable", True), ("ok", False), ("ok", False)]
    assert rows[0]["reason"]


def test_damage_elsewhere_is_no_matter_of_a_section(tiny: tiny_stores.Tiny,
                                                    rmqctl: Runner) -> None:
    damage.config_both_bad(tiny.root, "topics.json")
    rmqctl("config", tiny.root, "offsets").expect(0)
    done = rmqctl("config", tiny.root, "topics").expect(1)
    assert "does not start" in done.err


def test_nothing_there(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    assert "no file with filters" in rmqctl("config", tiny.root, "filters").expect(0).err
    damage.remove_folder(tiny.root, "config")
    assert rmqctl("config", tiny.root, "-o", "json").expect(0).json() == []
    damage.add_file(tiny.root, "config")
    rmqctl("config", tiny.root).expect(5)


def test_an_unknown_section_is_refused(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    rmqctl("config", tiny_base.root, "topic").expect(2)


def test_environment_and_section(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    done = rmqctl("config", "topics", "-o", "json", env={"RMQCTL_STORE": str(tiny_base.root)})
    assert len(done.expect(0).json()) == 2
