"""``rmqctl stats``: the document, the rows, the plots, what is said of damage."""

from __future__ import annotations

import pytest

from rmqctl.store.stats import KEY_COLUMNS, VALUE_COLUMNS
from tests.conftest import Runner
from tests.support import damage
from tests.support import tiny as tiny_stores


def test_the_document(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    answer = rmqctl("stats", tiny_base.root, "-o", "json").expect(0).json()
    assert [(row["topic"], row["messages"]) for row in answer["rows"]] == [
        ("orders", 6), ("bills", 2)]
    assert (answer["by"], answer["groups"], answer["total"]["messages"]) == ("topic", 2, 8)
    assert (answer["damaged_bytes"], answer["damaged_spans"]) == (0, 0)
    cover = answer["coverage"]
    assert cover.pop("bytes_total") == sum(cover.values()) == 2048


@pytest.mark.parametrize("by", KEY_COLUMNS)
def test_rows_by_everything(by: str, tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    rows = rmqctl("stats", tiny_base.root, "--by", by, "-o", "jsonl").expect(0).jsonl()
    assert sum(row["messages"] for row in rows) == (9 if by == "key" else 8)  # one has two keys
    assert tuple(rows[0]) == (*KEY_COLUMNS[by], *VALUE_COLUMNS)
    for form in ("table", "plain", "markdown", "csv"):
        assert rmqctl("stats", tiny_base.root, "--by", by, "-o", form).expect(0).out
    assert "total: 8 messages" in rmqctl("stats", tiny_base.root, "--by", by, "--plot",
                                         "-o", "plain").expect(0).out


def test_choosing(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    def messages(*options: str) -> int:
        return rmqctl("stats", tiny_base.root, "-o", "json", *options).expect(0).json()[
            "total"]["messages"]

    third = tiny_base.messages[2].record.store_timestamp
    assert messages("--topic", "bills") == 2
    assert messages("--since", str(third)) == 6
    assert messages("--until", str(third)) == 3
    assert messages("--since", "2023-11-14T22:13:20Z", "--until", "2023-11-14T22:13:20Z") == 1
    assert messages("--since", "2024-01-01") == 0
    rmqctl("stats", tiny_base.root, "--since", "-1h", "--until", "-2h").expect(2)
    rmqctl("stats", tiny_base.root, "--by", "color").expect(2)


def test_top_and_sort(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    answer = rmqctl("stats", tiny_base.root, "--by", "queue", "--top", "2", "--sort", "key",
                    "-o", "json").expect(0).json()
    assert [(row["topic"], row["queue_id"]) for row in answer["rows"]] == [
        ("bills", 0), ("orders", 0)]
    assert answer["groups"] == 3
    text = rmqctl("stats", tiny_base.root, "--by", "queue", "--top", "2", "-o", "plain").out
    assert "1 of 3 groups are not shown" in text


def test_plots(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    bars = rmqctl("stats", tiny_base.root, "--plot", "-o", "plain").expect(0).out.splitlines()
    assert bars[0].startswith("orders  6  ███")
    assert bars[0].count("█") > 2.9 * bars[1].count("█")
    lines = rmqctl("stats", tiny_base.root, "--plot", "--by", "minute", "-o",
                   "plain").expect(0).out
    assert "2023-11-14 22:13" in lines
    sizes = rmqctl("stats", tiny_base.root, "--plot", "--sort", "bytes", "-o", "plain").out
    assert "898 B  ███" in sizes


def test_a_plot_over_ages_stays_small(tmp_path, rmqctl: Runner) -> None:
    """A damaged time thousands of years away must not become a column per minute."""
    tiny = tiny_stores.variant(tmp_path / "store", "default")
    file, position = tiny.place(tiny.messages[1].start)
    damage.write(tiny.root, file, position + 56, (1 << 60).to_bytes(8, "big"))
    out = rmqctl("stats", tiny.root, "--plot", "--by", "minute", "-o", "plain").expect(0).out
    assert len(out) < 4000
    assert "total: 8 messages" in out


def test_damage_is_said_once(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    bad = tiny.messages[2]
    damage.zero(tiny.root, *tiny.place(bad.start), 8)
    done = rmqctl("stats", tiny.root, "-o", "json").expect(1)
    assert done.json()["damaged_bytes"] == len(bad.raw)
    assert f"{len(bad.raw)} bytes in 1 damaged range skipped" in done.err
    assert "rmqctl verify" in done.err


def test_nothing_to_count(tmp_path, rmqctl: Runner) -> None:
    (tmp_path / "commitlog").mkdir()
    assert rmqctl("stats", tmp_path, "-o", "json").expect(0).json()["rows"] == []
    for form in ("plain", "table", "csv"):
        rmqctl("stats", tmp_path, "-o", form, "--plot").expect(0)


def test_jobs_change_nothing(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    result = rmqctl("stats", tiny_base.root, "-o", "json").expect(0)
    for jobs in ("0", "2", "5"):
        assert rmqctl("stats", tiny_base.root, "-o", "json", "--jobs", jobs).out == result.out
