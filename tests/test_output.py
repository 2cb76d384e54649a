"""Rows and documents in every format, safe text, streaming, messages, progress, plots, metrics."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import StoreIOError
from rmqctl.output import FLUSH, FORMATS, Output, jsonlines
from rmqctl.output.cells import (
    PAGE_ROWS,
    cut,
    display_width,
    folded_command,
    number_text,
    pages,
)
from rmqctl.output.escape import json_visible, markdown_text, spreadsheet_safe, visible
from rmqctl.output.fitting import fit
from rmqctl.output.plot import bars, columns
from rmqctl.output.prometheus import Metric, exposition
from rmqctl.output.separated import flatten
from rmqctl.output.units import (
    count_text,
    duration_text,
    rate_text,
    size_text,
    time_or_zero,
    time_text,
)

MESSAGE = {
    "physical_offset": 213,
    "crc_ok": True,
    "topic": "TopicTest",
    "properties": {"KEYS": "k1 k2"},
    "keys": ["k1", "k2"],
    "tags": None,
    "body": "héllo",
}
NASTY = "\x1b[31mred\r\n\t\x00\x7f\x9b2J\u202egnp\u2028\udcff[bold]|_x_"


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(fmt: str, rows, columns=None, *, screen=False, environ=None, **options) -> str:
    stream = Screen() if screen else io.StringIO()
    err = io.StringIO()
    environ = {"COLUMNS": "100", "NO_COLOR": "1"} if environ is None else environ
    out = Output.open(fmt, stdout=stream, stderr=err, environ=environ)
    out.rows(rows, columns, **options)
    return stream.getvalue()


def document(fmt: str, value, human=None, *, screen=False, environ=None) -> str:
    stream = Screen() if screen else io.StringIO()
    environ = {"COLUMNS": "100", "NO_COLOR": "1"} if environ is None else environ
    out = Output.open(fmt, stdout=stream, stderr=io.StringIO(), environ=environ)
    out.document(value, human)
    return stream.getvalue()


# -- formats ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [[], [MESSAGE], [MESSAGE] * 3, [MESSAGE] * (PAGE_ROWS + 1)])
def test_json_formats_give_the_rows_back(rows):
    assert json.loads(shown("json", rows)) == rows
    assert [json.loads(line) for line in shown("jsonl", rows).splitlines()] == rows


def test_json_is_one_object_per_line_within_an_array():
    assert shown("json", [{"a": 1}, {"a": 2}]) == '[\n{"a": 1},\n{"a": 2}\n]\n'
    assert shown("json", []) == "[]\n"


@pytest.mark.parametrize(("fmt", "separator"), [("csv", ","), ("tsv", "\t")])
def test_separated_values_give_the_cells_back(fmt, separator):
    rows = [MESSAGE, {**MESSAGE, "tags": 'a,"b"\tc\nd', "body": ""}]
    table = list(csv.reader(io.StringIO(shown(fmt, rows)), delimiter=separator))
    assert table[0] == list(MESSAGE)
    first = dict(zip(table[0], table[1], strict=True))
    assert first["physical_offset"] == "213"
    assert first["crc_ok"] == "true"
    assert json.loads(first["properties"]) == MESSAGE["properties"]
    assert json.loads(first["keys"]) == MESSAGE["keys"]
    assert first["tags"] == ""
    assert table[2][table[0].index("tags")] == 'a,"b"\tc\nd'


def test_plain():
    rows = [{"topic": "A", "offset": 9, "ok": True}, {"topic": "Bcd", "offset": 10, "ok": None}]
    assert shown("plain", rows).splitlines() == [
        "topic      offset  ok",
        "A               9  true",
        "Bcd            10",
    ]


def test_markdown():
    rows = [{"topic": "A|B", "offset": 9}]
    assert shown("markdown", rows, title="My_topics").splitlines() == [
        "**My_topics**",
        "",
        "| topic   |   offset |",
        "|---------|----------|",
        "| A\\|B    |        9 |",
    ]


def test_table():
    rows = [{"topic": "A", "offset": 9}, {"topic": "Bcd", "offset": 1000000}]
    assert shown("table", rows, title="Topics").splitlines() == [
        "Topics",
        "topic   offset",
        "──────────────",
        "A            9",
        "Bcd    1000000",
    ]


def test_columns_and_brief_choose_what_is_shown():
    row = {"a": 1, "b": 2, "c": 3}
    assert shown("csv", [row], ["c", "a"]) == "c,a\n3,1\n"
    assert shown("csv", [row], ["c", "a"], brief=["a"]) == "c,a\n3,1\n"
    assert shown("plain", [row], ["c", "a"], brief=["b"]).split() == ["b", "2"]
    assert json.loads(shown("jsonl", [row], ["c"])) == row  # programs get the whole object


def test_a_header_needs_no_rows():
    assert shown("csv", [], ["a", "b"]) == "a,b\n"
    assert shown("csv", []) == ""
    assert shown("plain", [], ["a", "b"]) == ""


def test_render_is_for_people_only():
    rows = [{"size": 2048, "none": None}]
    render = {"size": size_text, "none": size_text}
    assert "2.0 KiB" in shown("plain", rows, render=render)
    assert shown("csv", rows, render=render) == "size,none\n2048,\n"


def test_no_rows_is_said_on_stderr_and_only_to_people():
    for fmt in FORMATS:
        stream, err = io.StringIO(), io.StringIO()
        out = Output.open(fmt, stdout=stream, stderr=err, environ={})
        assert out.rows([], ["a"], empty="nothing matched") == 0
        wanted = "rmqctl: nothing matched\n" if not out.is_data else ""
        assert err.getvalue() == wanted
        assert "nothing" not in stream.getvalue()


@pytest.mark.parametrize("fmt", FORMATS)
def test_bytes_are_a_defect(fmt):
    with pytest.raises(TypeError):
        shown(fmt, [{"body": b"x"}])
    with pytest.raises(TypeError):
        shown(fmt, [{"nested": {"body": b"x"}}])


@pytest.mark.parametrize("fmt", FORMATS)
def test_not_a_number_never_shows(fmt):
    text = shown(fmt, [{"a": float("nan"), "b": {"c": [float("inf")]}}]).lower()
    if fmt in ("json", "jsonl"):
        value = json.loads(text)
        assert (value[0] if fmt == "json" else value) == {"a": None, "b": {"c": [None]}}
    first_cell = text.splitlines()[-1].split(",")[0]
    assert "nan" not in first_cell


def test_large_integers_stay_exact():
    number = (1 << 63) - 1
    assert json.loads(shown("jsonl", [{"n": number}])) == {"n": number}
    assert shown("csv", [{"n": number}]) == f"n\n{number}\n"
    assert f"{number:,}" in shown("table", [{"n": number}], environ={"COLUMNS": "10"})


def test_a_late_key_is_not_lost_silently():
    stream, err = io.StringIO(), io.StringIO()
    out = Output.open("csv", stdout=stream, stderr=err, environ={})
    rows = itertools.chain(({"a": 1} for _ in range(PAGE_ROWS)), [{"a": 2, "b": 3}] * 2)
    out.rows(rows)
    assert err.getvalue().count("has no column 'b'") == 1
    assert stream.getvalue().splitlines()[0] == "a"


def test_two_json_values_are_a_defect():
    out = Output.open("json", stdout=io.StringIO(), environ={})
    out.rows([])
    with pytest.raises(RuntimeError):
        out.document({})


def test_an_unknown_format_is_a_defect():
    with pytest.raises(ValueError, match="xml"):
        Output.open("xml", stdout=io.StringIO())


def test_the_default_is_a_table_on_a_terminal_and_plain_elsewhere():
    assert Output.open(None, stdout=Screen()).format == "table"
    assert Output.open(None, stdout=io.StringIO()).format == "plain"


# -- safety -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("color", [{"NO_COLOR": "1"}, {"FORCE_COLOR": "1", "TERM": "xterm"}])
def test_message_data_cannot_steer_a_terminal(fmt, color):
    rows = [{"body": NASTY, "keys": [NASTY], "properties": {NASTY: NASTY}}]
    text = shown(fmt, rows, title=NASTY, screen=True, environ={"COLUMNS": "200", **color})
    text += document(fmt, {"name": NASTY, NASTY: rows}, screen=True, environ=dict(color))
    ours = re.sub(r"\x1b\[[0-9;]*m", "", text) if "FORCE_COLOR" in color else text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", ours.replace("\t", ""))
    assert "\u202e" not in text
    text.encode("utf-8")


@pytest.mark.parametrize("fmt", ["json", "jsonl", "plain", "csv"])
@pytest.mark.parametrize("mark", "\u061c\u200b\u200e\u200f\u202a\u202d\u2066\u2069\ufeff\U000e0041")
def test_marks_that_reorder_or_hide_text_are_shown_on_a_terminal(fmt, mark):
    text = shown(fmt, [{"body": f"pay {mark}001"}], screen=True, environ={"COLUMNS": "80"})
    assert mark not in text
    assert f"{ord(mark):x}"[-4:] in text.lower() or "\\udb40\\udc41" in text
    if fmt.startswith("json"):
        rows = json.loads(text)
        assert (rows if fmt == "jsonl" else rows[0]) == {"body": f"pay {mark}001"}


@pytest.mark.parametrize("fmt", ["table", "plain", "markdown"])
def test_markup_in_data_is_only_text(fmt):
    assert "[bold]x[/bold]" in shown(fmt, [{"a": "[bold]x[/bold] :smile:"}])
    assert ":smile:" in shown(fmt, [{"a": "[bold]x[/bold] :smile:"}])


@pytest.mark.parametrize("fmt", ["jsonl", "json"])
def test_json_is_exact_although_escaped_on_a_terminal(fmt):
    text = shown(fmt, [{"body": NASTY}], screen=True)
    value = json.loads(text)
    assert (value[0] if fmt == "json" else value) == {"body": NASTY}


def test_csv_is_exact_in_a_file():
    rows = list(csv.reader(io.StringIO(shown("csv", [{"b": "a\x1b\x00\x7f\r"}]))))
    assert rows == [["b"], ["a\x1b\x00\x7f\r"]]


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd", "-cmd|x", "@SUM(A1)", "\tx", "\rx", "-", "=", "+", " =1+1", "  @x",
             "\u3000=1", "\xa0+x", "\u200b=1", "\n=1", "\nx", "\uff1d1+1", "\uff0bx", "\uff0dx",
             "\uff20x", " \uff1d1", "\ufe661", "\u2212x", " -1+cmd",
             "\u2066=1", "\0=1", "\u200d=1", "\u202e\xad=1"]
)
def test_formulas_are_defused(text):
    assert spreadsheet_safe(text) == "'" + text
    cell = next(csv.reader(io.StringIO(shown("csv", [{"a": text}]).split("\n", 1)[1])))[0]
    assert cell == "'" + text


@pytest.mark.parametrize("text", ["-5", "+5", "-1.5", "", "a=1", "5", "'x", " -5",
                                  " x", "a\t=1", "\u4e2d\uff1d"])
def test_what_is_no_formula_stays(text):
    assert spreadsheet_safe(text) == text


def test_numbers_are_no_formulas():
    assert shown("csv", [{"a": -5, "b": -0.5, "c": [-1]}]) == "a,b,c\n-5,-0.5,[-1]\n"


@given(st.text())
def test_visible_text_is_one_safe_line(text):
    safe = visible(text)
    assert len(safe.splitlines()) <= 1
    assert safe.isprintable() or not re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", safe)


@given(st.text())
def test_json_stays_equal_when_made_visible(text):
    assert json.loads(json_visible(json.dumps(text, ensure_ascii=False))) == text


def test_markdown_text():
    assert markdown_text("my_topic") == "my_topic"
    assert markdown_text("_x_ *y* `z` <b> |") == "\\_x\\_ \\*y\\* \\`z\\` \\<b> \\|"
    assert markdown_text("[a](b) [c]") == "[a]\\(b) [c]"


# -- streaming ----------------------------------------------------------------------------------


class Counting:
    """Rows that know how many were asked for while output is written."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.given = 0

    def __iter__(self):
        for number in range(self.total):
            self.given += 1
            yield {"n": number, "text": "x" * 100}


@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_are_written_while_they_come(fmt):
    rows = Counting(3000)
    lags = []

    class Watching(io.StringIO):
        def write(self, text: str) -> int:
            numbers = re.findall(r"(?m)(?:^|[^0-9x])([0-9,]+)[^0-9]+x{100}", text)
            if numbers:
                lags.append(rows.given - int(numbers[0].replace(",", "")))
            return super().write(text)

    out = Output.open(fmt, stdout=Watching(), environ={"COLUMNS": "150", "NO_COLOR": "1"})
    assert out.rows(rows) == 3000
    assert len(lags) >= 5
    assert max(lags) <= 600


@pytest.mark.parametrize("fmt", FORMATS)
def test_flush_shows_what_has_come(fmt):
    stream = io.StringIO()
    seen = []

    def rows():
        yield {"n": 11}
        yield FLUSH
        seen.append(stream.getvalue())
        yield {"n": 22}
        yield FLUSH
        yield FLUSH
        seen.append(stream.getvalue())

    out = Output.open(fmt, stdout=stream, environ={"NO_COLOR": "1"})
    assert out.rows(rows()) == 2
    assert "11" in seen[0]
    assert "22" not in seen[0]
    assert "22" in seen[1]


def test_a_slow_producer_is_shown_before_the_page_is_full():
    clock = itertools.count(0, 0.3).__next__
    assert [len(p) for p in pages(({"n": n} for n in range(6)), clock=clock)] == [2, 2, 2]
    still = itertools.repeat(0.0).__next__
    assert [len(p) for p in pages(({"n": n} for n in range(6)), 4, clock=still)] == [4, 2]


@pytest.mark.parametrize("fmt", ["plain", "markdown", "table"])
def test_the_header_stands_once_and_pages_line_up(fmt):
    lines = shown(fmt, ({"n": n, "name": f"t{n}"} for n in range(PAGE_ROWS * 2 + 1))).splitlines()
    header = {"plain": 1, "markdown": 2, "table": 2}[fmt]
    assert len(lines) == header + PAGE_ROWS * 2 + 1
    assert sum("name" in line for line in lines) == 1
    body = lines[header:]
    # The first page ends with three digits, the last row has four: no column may shift.
    assert len({line.index("t") for line in body[:PAGE_ROWS]}) == 1
    assert "1000" in body[-1]
    assert "t1000" in body[-1]


def test_a_failure_leaves_the_json_array_open():
    def rows():
        yield {"a": 1}
        raise OSError("gone")

    stream = io.StringIO()
    with pytest.raises(OSError, match="gone"):
        Output.open("json", stdout=stream, environ={}).rows(rows())
    with pytest.raises(json.JSONDecodeError):
        json.loads(stream.getvalue())


def test_writing_to_a_closed_stream_is_an_io_error():
    stream = io.StringIO()
    out = Output.open("jsonl", stdout=stream, environ={})
    stream.close()
    with pytest.raises(StoreIOError, match="standard output"):
        out.rows([{"a": 1}])


def test_jsonl_is_fast_enough():
    rows = [dict(MESSAGE, physical_offset=n) for n in range(20_000)]
    with open(os.devnull, "w") as nowhere:
        out = Output.open("jsonl", stdout=nowhere, environ={})

        def seconds() -> float:
            begin = time.process_time()
            out.rows(rows)
            return time.process_time() - begin

        # It does several times that; machines differ.
        assert 20_000 / min(seconds() for _ in range(3)) > 60_000


# -- tables in little room ----------------------------------------------------------------------


def test_columns_shrink_from_the_widest_and_to_their_least_only():
    assert fit([5, 10, 20], [5, 10, 12], 100) == [5, 10, 20]
    assert fit([30, 60, 8], [12, 12, 8], 62) == [25, 25, 8]
    assert fit([19, 40], [19, 12], 20) == [19, 12]
    assert fit([19, 19], [19, 19], 10) == [19, 19]


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), min_size=1),
       st.integers(1, 300))
def test_fitting_keeps_what_must_stay(columns, width):
    natural = [max(pair) for pair in columns]
    least = [min(pair) for pair in columns]
    widths = fit(natural, least, width)
    assert all(a <= w <= n for a, w, n in zip(least, widths, natural, strict=True))
    room = width - 2 * (len(widths) - 1)
    assert sum(widths) <= room or widths == least


SENTENCE = ("the record at 171668 in commitlog/00000000000000098304 is refused: its body does not "
            "match its CRC, and a broker that starts here would cut off all that follows it; the "
            "consumequeue of TP_ship_evt-x leads to it, so that 20 messages are lost")
FILE = "consumequeue/%RETRY%group-with-a-name/3/00000000000000000380"


@pytest.mark.parametrize("width", [62, 80, 100, 120])
@pytest.mark.parametrize("rows", [
    [{"severity": "error", "file": FILE, "offset": 171668, "detail": SENTENCE}],
    [{"queue_offset": 10 ** 8, "physical_offset": 10 ** 12, "topic": "TP_ship_evt-x",
      "store_timestamp": "2024-06-21T19:50:35.167Z", "tags": "a-tag-with-dashes", "keys": "k-1",
      "total_size": 12345, "body": "x" * 300}],
    [{"n": 1, "topic": "T", "detail": "short"}] * 500 + [
        {"n": 10 ** 15, "topic": "a-longer-topic-than-before", "detail": SENTENCE}],
], ids=["sentence", "many columns", "later page"])
def test_a_table_is_never_wider_than_the_terminal_and_breaks_no_name(rows, width):
    text = shown("table", rows, environ={"COLUMNS": str(width), "NO_COLOR": "1"})
    assert all(display_width(line) <= width for line in text.splitlines())
    words = " ".join(text.split())
    for row in rows[-1:]:
        for name, value in row.items():
            if name == "detail":  # its words are all there, none is broken
                assert set(str(value).split()) <= set(words.split())
            elif name != "body" and name not in words.partition("columns not shown: ")[2]:
                assert number_text(name, value) in text
    assert "…" not in text or "body" in rows[0]


@pytest.mark.parametrize("fmt", ["table", "plain"])
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_column_goes_before_a_row_is_folded_into_lines(fmt, width):
    row = {"queue_offset": 7, "physical_offset": 10 ** 12, "topic": "TP_ship_evt-x",
           "store_timestamp": "2024-06-21T19:50:35.167Z", "tags": "a-tag", "empty": None,
           "total_size": 12345, "detail": SENTENCE}
    text = shown(fmt, [row] * 2, environ={"COLUMNS": str(width), "NO_COLOR": "1"})
    lines = text.splitlines()
    assert max(map(display_width, lines)) <= width
    at = [number for number, line in enumerate(lines) if line.split()[:1] == ["7"]]
    assert len(at) == 2  # each row begins with its first value, and has all of the others' room
    assert all("TP_ship_evt-x" in lines[number] for number in at)
    shorter = " ".join(text.split())
    assert SENTENCE in shorter or width == 120
    named = shorter.partition("columns not shown: ")[2].replace(" (-o json has them)", "")
    hidden = named.split(", ") if named else []
    assert "empty" not in hidden
    assert set(hidden) == {name for name, value in row.items() if value is not None
                           and name != "detail" and number_text(name, value) not in shorter}


def test_the_sentence_of_a_row_has_lines_of_its_own_where_its_column_is_narrow():
    rows = [{"file": FILE, "offset": 7, "empty": None, "detail": "wrong"}] * 2
    block = f"{FILE}       7\n    wrong\n"
    text = shown("table", rows, environ={"COLUMNS": "70", "NO_COLOR": "1"})
    assert text.partition("─\n")[2] == block * 2


def test_what_has_no_room_at_all_is_shown_below_each_other():
    rows = [{"file": FILE, "topic": "T" * 30, "detail": "wrong"}] * 2
    text = shown("table", rows, environ={"COLUMNS": "50", "NO_COLOR": "1"})
    assert text.count("detail  wrong\n\n") == 2


@pytest.mark.parametrize("width", [20, 60, 80])
def test_a_message_on_stderr_is_folded_and_a_log_is_not(width):
    for environ, limit in (({"COLUMNS": str(width)}, width), ({}, None)):
        stream = io.StringIO()
        out = Output.open("plain", stdout=io.StringIO(), stderr=stream, environ=environ)
        out.warn(SENTENCE)
        out.note("/a/folder/whose/name/is/longer/than/a/terminal/has/columns/" * 3)
        lines = stream.getvalue().splitlines()
        if limit is None:
            assert len(lines) == 2
        else:
            assert max(map(display_width, lines)) <= limit
            assert lines[1].startswith("  ")


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_folded_command_is_still_one_command(width):
    import shlex

    command = ("rmqctl recover '/data/a b/store' --from /backup/2024-06-21/of-the-night/store "
               "--only commitlog")
    lines = folded_command(command, width)
    assert max(map(len, lines)) <= width
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)


def test_plain_in_a_file_has_lines_as_long_as_they_are():
    text = shown("plain", [{"n": 1, "file": FILE, "detail": SENTENCE}], environ={})
    assert len(text.splitlines()) == 2
    assert SENTENCE in text


@pytest.mark.parametrize("fmt", ["table", "plain", "markdown"])
def test_no_sentence_is_cut(fmt):
    rows = [{"n": 1, "detail": f"{SENTENCE}; {SENTENCE}"}]
    text = shown(fmt, rows, environ={"COLUMNS": "80", "NO_COLOR": "1"})
    assert "(+" not in text
    assert "messages are lost" in " ".join(text.split())[-30:]


def test_pairs_and_sentences_fold_between_words():
    def page(human):
        human.pairs({"checkpoint": SENTENCE, "file": FILE * 2})
        human.text(SENTENCE)
        human.text("rmqctl recover STORE " + "--topic T " * 12)

    text = document("table", {}, page, environ={"COLUMNS": "80", "NO_COLOR": "1"})
    lines = text.splitlines()
    assert lines[1].startswith(" " * 12)
    assert FILE * 2 in "".join(line.strip() for line in lines)
    assert all(len(line) <= 80 for line in lines)
    assert lines[-2].startswith("rmqctl recover STORE --topic")
    assert lines[-2].endswith(" \\")  # to be copied


def test_long_cells_fold_within_the_terminal_and_say_what_is_cut():
    text = "x" * 5000
    lines = shown("table", [{"n": 1, "body": text}], environ={"COLUMNS": "60", "NO_COLOR": "1"})
    assert all(len(line) <= 60 for line in lines.splitlines())
    assert 5 <= len(lines.splitlines()) <= 10
    hidden = int("".join(re.findall(r"\(\+([0-9\s]+)\)", lines)).replace("\n", ""))
    assert lines.count("x") + hidden == 5000


def test_plain_cuts_freak_cells_and_says_so():
    assert "…(+4800)" in shown("plain", [{"body": "x" * 5000}])
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3, "...") == "abc...(+1)"


def test_wide_characters_count_double():
    assert display_width("abc") == 3
    assert display_width("日本") == 4
    lines = shown("table", [{"a": "日本", "b": "x"}, {"a": "abcd", "b": "y"}]).splitlines()
    assert lines[2] == "日本  x"
    assert lines[3] == "abcd  y"


def test_without_unicode_tables_are_ascii():
    class Ascii(io.TextIOWrapper):
        pass

    raw = io.BytesIO()
    stream = Ascii(raw, encoding="ascii")
    out = Output.open("table", stdout=stream, environ={"COLUMNS": "40", "NO_COLOR": "1"})
    out.rows([{"a": "é" + "x" * 500}], title="T")
    out.flush()
    text = raw.getvalue().decode("ascii")
    assert "---" in text
    assert "\\xe9" in text
    assert "...(+" in text.replace("\n", "")


def test_colour_only_where_wanted():
    rows = [{"severity": "error", "n": 1}]
    styles = {"severity": {"error": "bad"}.get}
    for environ, screen, wanted in (
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "xterm", "FORCE_COLOR": "1"}, False, True),
        ({"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ):
        text = shown("table", rows, screen=screen, environ=environ, styles=styles)
        assert ("\x1b[1;31merror\x1b[0m" in text) == wanted, (environ, screen)
        assert ("\x1b" in text) == wanted


# -- documents ----------------------------------------------------------------------------------

DOCUMENT = {
    "store": "s",
    "abort": False,
    "lock": {"held": True, "pid": 42},
    "files": [{"path": "commitlog/0", "size": 1024}],
    "none": [],
}


@pytest.mark.parametrize("fmt", ["json", "jsonl"])
def test_a_document_comes_back(fmt):
    text = document(fmt, DOCUMENT)
    assert json.loads(text) == DOCUMENT
    assert (text.count("\n") == 1) == (fmt == "jsonl")


def test_an_indented_document_keeps_flat_things_on_one_line():
    assert document("json", {"a": {"b": 1}, "c": [1, 2], "d": [{"e": [1]}]}) == (
        '{\n  "a": {"b": 1},\n  "c": [1, 2],\n  "d": [\n    {\n      "e": [1]\n    }\n  ]\n}\n'
    )


@pytest.mark.long
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_document_comes_back(value):
    assert json.loads(document("json", {"value": value})) == {"value": value}


def test_a_document_as_pairs():
    assert document("csv", DOCUMENT).splitlines() == [
        "key,value",
        "store,s",
        "abort,false",
        "lock.held,true",
        "lock.pid,42",
        "files[0].path,commitlog/0",
        "files[0].size,1024",
        "none,[]",
    ]
    assert list(flatten({"a": {}})) == [("a", {})]


def page(human) -> None:
    human.heading("Store")
    human.pairs({"path": "s", "abort file": "yes"}, styles={"abort file": "bad"})
    human.table([{"topic": "A", "n": 1}], title="Topics")
    human.text("a plot\nof lines", style="dim")


def test_a_page_in_plain_text():
    assert document("plain", {}, page).splitlines() == [
        "Store",
        "-----",
        "path        s",
        "abort file  yes",
        "",
        "Topics",
        "topic      n",
        "A          1",
        "a plot",
        "of lines",
    ]


def test_a_page_in_markdown():
    assert document("markdown", {}, page).splitlines() == [
        "## Store",
        "",
        "- **path**: s",
        "- **abort file**: yes",
        "",
        "**Topics**",
        "",
        "| topic   |   n |",
        "|---------|-----|",
        "| A       |   1 |",
        "```",
        "a plot",
        "of lines",
        "```",
    ]


def test_a_page_on_a_terminal():
    assert document("table", {}, page).splitlines() == [
        "Store",
        "path        s",
        "abort file  yes",
        "",
        "Topics",
        "topic  n",
        "────────",
        "A      1",
        "a plot",
        "of lines",
    ]
    coloured = document("table", {}, page, environ={"FORCE_COLOR": "1", "TERM": "xterm"})
    assert "\x1b[1;31myes\x1b[0m" in coloured


def test_a_document_nobody_wrote_a_page_for():
    text = document("plain", DOCUMENT)
    assert "store  s\n" in text
    assert "commitlog/0" in text


# -- messages and progress ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quiet", "verbose", "kinds"),
    [(0, 0, "note warn"), (1, 0, "warn"), (2, 0, ""), (0, 1, "note warn debug"), (2, 2, "debug")],
)
def test_messages(quiet, verbose, kinds):
    err = io.StringIO()
    out = Output.open("json", quiet=quiet, verbose=verbose, stdout=io.StringIO(), stderr=err)
    out.note("note")
    out.warn("warn \x1b[2J\nx")
    out.debug("debug")
    expected = {
        "note": "rmqctl: note\n",
        "warn": "rmqctl: warning: warn \\x1b[2J\\nx\n",
        "debug": "rmqctl: debug: debug\n",
    }
    assert err.getvalue() == "".join(expected[kind] for kind in kinds.split())


def test_messages_to_a_closed_stderr_are_dropped():
    err = io.StringIO()
    err.close()
    Output.open("json", stdout=io.StringIO(), stderr=err).warn("x")


@pytest.mark.parametrize(
    ("screen", "options", "drawn"),
    [
        (True, {}, True),
        (True, {"quiet": 1}, False),
        (True, {"no_progress": True}, False),
        (True, {"environ": {"TERM": "dumb"}}, False),
        (False, {}, False),
    ],
)
def test_progress_is_drawn_on_a_terminal_only(screen, options, drawn):
    err = Screen() if screen else io.StringIO()
    stdout = io.StringIO()
    options = {"environ": {"TERM": "xterm"}} | options
    out = Output.open("json", stdout=stdout, stderr=err, **options)
    with out.progress("verify [x]", 1000) as progress:
        if drawn:
            progress._show_at = 0
            progress.draw()
        progress.advance(600)
        progress.label("index")
        out.warn("careful")
        progress.total(2000)
        progress.advance(400)
    assert stdout.getvalue() == ""
    assert ("\x1b" in err.getvalue()) == drawn
    assert ("verify [x]" in err.getvalue()) == drawn
    assert ("careful" in err.getvalue()) == (options.get("quiet", 0) < 2)


def test_rows_and_progress_share_a_screen():
    screen = Screen()
    environ = {"TERM": "xterm", "NO_COLOR": "1"}
    out = Output.open("jsonl", stdout=screen, stderr=screen, environ=environ)
    with out.progress("verify", 1000) as progress:
        progress._show_at = 0
        progress.draw()
        assert "verify" in screen.getvalue()
        out.rows([{"n": 1}])
        progress._show_at = 0
        progress.draw()
    before, after = screen.getvalue().split('{"n": 1}\n')
    assert before.endswith("\x1b[2K")  # the line of the bar was cleared for the row
    assert "verify" in after


def test_quick_work_shows_no_progress():
    err = Screen()
    out = Output.open("json", stdout=io.StringIO(), stderr=err, environ={"TERM": "xterm"})
    with out.progress("verify", 10) as progress:
        progress.advance(10)
    assert err.getvalue() == ""


# -- units, plots, metrics ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: size_text(0), "0 B"),
        (lambda: size_text(1023), "1023 B"),
        (lambda: size_text(1024), "1.0 KiB"),
        (lambda: size_text(1048575), "1.0 MiB"),
        (lambda: size_text(4 << 30), "4.0 GiB"),
        (lambda: size_text((1 << 63) - 1), "8.0 EiB"),
        (lambda: count_text(1901788), "1,901,788"),
        (lambda: time_text(1_700_000_000_004), "2023-11-14T22:13:20.004Z"),
        (lambda: time_text(-1), "1969-12-31T23:59:59.999Z"),
        (lambda: time_text((1 << 63) - 1), "9223372036854775807 ms"),
        (lambda: time_or_zero(0), "0"),
        (lambda: time_or_zero(-1), "1969-12-31T23:59:59.999Z"),
        (lambda: duration_text(850), "850 ms"),
        (lambda: duration_text(12_345), "12.3 s"),
        (lambda: duration_text(125_000), "2 min 5 s"),
        (lambda: duration_text(7_500_000), "2 h 5 min"),
        (lambda: duration_text(273_600_000), "3 d 4 h"),
        (lambda: duration_text(-850), "-850 ms"),
        (lambda: rate_text(1250), "1,250/s"),
        (lambda: rate_text(12.5), "12.5/s"),
        (lambda: rate_text(0.25), "0.25/s"),
    ],
)
def test_units(call, text):
    assert call() == text


def test_bars():
    assert bars([("A", 4), ("long", 2), ("none", 0), ("tiny", 0.01)], width=30).splitlines() == [
        "A        4  ██████████████████",
        "long     2  █████████",
        "none     0",
        "tiny  0.01  ▏",
    ]
    assert bars([("A", 4), ("B", 1)], width=22, unicode=False).splitlines() == [
        "A  4  ################",
        "B  1  ####",
    ]
    assert bars([]) == ""
    assert bars([("A", 0)]).split() == ["A", "0"]


@given(st.lists(st.tuples(st.text(max_size=60), st.integers(0, 1 << 60))), st.integers(20, 200))
def test_bars_keep_one_line_each_within_reason(items, width):
    lines = bars(items, width=width).split("\n")
    assert len(lines) == max(len(items), 1)


def test_columns_plot():
    assert columns([0, 4, 8, 2], first="00:00", last="03:00", width=40, height=2).splitlines() == [
        "8 │  █",
        "0 │ ██▄",
        "  └────",
        "   00:00 03:00",
    ]
    ascii_plot = columns([1, 2], first="a", last="b", width=20, height=2, unicode=False)
    assert ascii_plot.isascii()
    assert columns([], first="a", last="b") == ""
    assert "│" in columns([0, 0], first="a", last="b")


@given(st.lists(st.integers(0, 1 << 50), min_size=1, max_size=500), st.integers(40, 200))
def test_columns_plot_fits(values, width):
    lines = columns(values, first="a", last="b", width=width, height=4).split("\n")
    assert len(lines) == 6
    assert max(map(len, lines)) <= width


def test_exposition():
    metrics = [
        Metric("rmqctl_findings", "Findings of\nthe last \\ run.",
               [({"store": 'a"b\\c\nd\udcff', "severity": "error"}, 3), ({}, 0.5)]),
        Metric("rmqctl_time_seconds", "When.", [({}, float("nan"))]),
        Metric("rmqctl_nothing", "No sample, no line.", []),
    ]
    assert exposition(metrics).decode() == (
        "# HELP rmqctl_findings Findings of\\nthe last \\\\ run.\n"
        "# TYPE rmqctl_findings gauge\n"
        'rmqctl_findings{severity="error",store="a\\"b\\\\c\\nd\\\\udcff"} 3.0\n'
        "rmqctl_findings 0.5\n"
        "# HELP rmqctl_time_seconds When.\n"
        "# TYPE rmqctl_time_seconds gauge\n"
        "rmqctl_time_seconds NaN\n"
    )
    assert exposition([]) == b""


ODD_ROWS: list[dict[str, Any]] = [
    {"text": "\x00\x1f\x7f\u2028é\U0001f600 \"\\/", "n": -(1 << 63), "yes": True, "none": None},
    {"big": 1 << 64, "bigger": 1 << 200}, {"half": "\ud800"}, {"real": 1.5, "large": 1e22},
    {"nested": {"a": ["b", {"c": 1.0}]}, "list": [], "map": {}, "pair": (1, "two")},
    {"set": {"b", "a"}, "in a list": [{"b", "a"}]}, {"": ""}, {"nan": math.nan}]


@pytest.mark.parametrize("row", ODD_ROWS, ids=lambda row: next(iter(row)))
def test_rows_are_worded_as_the_standard_library_words_them(row: dict[str, Any]) -> None:
    expected = json.dumps({key: None if key == "nan" else value for key, value in row.items()},
                          ensure_ascii=False, separators=(", ", ": "), default=sorted)
    assert jsonlines._encode_row(row) == expected
