"""Golden transcripts: ``$ rmqctl ...`` and what it prints. See transcripts/README.md.

The console blocks of README.md, docs/ and examples/ are run the same way, so no page shows an
output that the program does not give. In the tutorial and the how-to pages the ``sh`` blocks are
run as well.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmqctl.case import runs
from tests.plugin_transcripts import wants_update
from tests.support import cli, damage, snapshot
from tests.support.forked_case import Forked

FOLDER = Path(__file__).parent / "transcripts"
FILES = sorted(
    p for p in FOLDER.rglob("*") if p.suffix in (".md", ".txt") and p.name != "README.md"
)
ROOT = Path(__file__).parents[1]
EXAMPLE = "examples/store"
TRACK_RECORD = "track-record/"
INCIDENT = "incident-"
PAGES = sorted(
    p
    for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    if "```console\n" in p.read_text()
)
#: Pages of which the ``sh`` blocks are run, too.
TASKS = sorted(p for name in ("howto", "tutorial") for p in ROOT.glob(f"docs/{name}/*.md"))
ENVIRONMENT = {"COLUMNS": "100"}
#: Stands in an output for lines that are left out.
ELISION = "…"
_FILE = re.compile(r"```\w+ ([\w.-]+)")
_DIRECTIVE = re.compile(
    r"(?P<open><!-- )?(store|run|mask|skip)(?: ([\w.-]+))?: +(.+?)(?(open) -->)")


class TranscriptError(AssertionError):
    """A transcript that breaks the rules of transcripts/README.md."""


@dataclass
class Command:
    """One ``$`` line; ``expected`` is every line up to the next one."""

    number: int
    line: str
    expected: list[str] = field(default_factory=list)


@dataclass
class Directive:
    """``store``, ``run``, ``mask`` or ``skip`` with its text; ``name`` is what a store is called.

    ``skip`` gives the reason why the next ``sh`` block is not run.

    ``hidden``: it stands in a comment, which a page uses for what its reader does by hand.
    """

    number: int
    kind: str
    name: str
    text: str
    hidden: bool = False


@dataclass
class File:
    """A fenced block with a name: what the reader saves under it. ``fence`` opens the block."""

    fence: str
    name: str
    lines: list[str] = field(default_factory=list)


@dataclass
class Shell:
    """A ``sh`` block: commands whose output the page does not show."""

    number: int
    lines: list[str] = field(default_factory=list)


@dataclass
class Prose:
    """A line that is only read by people."""

    line: str


Step = Command | Directive | File | Shell | Prose


def parse(text: str, *, console: bool = False) -> list[Step]:
    """Split a transcript; ``console`` means the whole file is one console block (``.txt``)."""
    steps: list[Step] = []
    inside = console
    file: File | Shell | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if file is not None:
            if line == "```":
                file = None
            else:
                file.lines.append(line)
        elif not console and (match := _FILE.fullmatch(line)):
            file = File(line, match[1])
            steps.append(file)
        elif not console and line == "```sh":
            file = Shell(number)
            steps.append(file)
        elif not console and line.startswith("```"):
            inside = not inside and line.strip() == "```console"
            steps.append(Prose(line))
        elif inside and line.startswith("$ "):
            steps.append(Command(number, line))
        elif inside and steps and isinstance(steps[-1], Command):
            steps[-1].expected.append(line)
        elif match := _DIRECTIVE.fullmatch(line):
            steps.append(Directive(number, match[2], match[3] or "store", match[4],
                                   bool(match["open"])))
        elif inside and line.strip() and not console:
            raise TranscriptError(f"line {number}: output before the first '$ rmqctl' of a block")
        else:
            steps.append(Prose(line))
    if (inside and not console) or file is not None:
        raise TranscriptError("a block is not closed")
    return steps


def render(steps: list[Step]) -> str:
    """The text of a transcript; ``render(parse(text)) == text``."""
    lines = []
    for step in steps:
        if isinstance(step, Directive):
            name = f" {step.name}" if step.kind == "store" and step.name != "store" else ""
            line = f"{step.kind}{name}: {step.text}"
            lines.append(f"<!-- {line} -->" if step.hidden else line)
        elif isinstance(step, Command):
            lines += [step.line, *step.expected]
        elif isinstance(step, File):
            lines += [step.fence, *step.lines, "```"]
        elif isinstance(step, Shell):
            lines += ["```sh", *step.lines, "```"]
        else:
            lines.append(step.line)
    return "\n".join(lines) + "\n"


def stages_of(command: Command) -> tuple[list[list[str]], str | None]:
    """The words of each program of a pipe, and the file that takes what the last one says."""
    words = shlex.split(command.line[2:])
    target = words[-1] if words[-2:-1] == [">"] else None
    stages: list[list[str]] = [[]]
    for word in words[:-2] if target else words:
        if word == "|":
            stages.append([])
        else:
            stages[-1].append(word)
    return stages, target


def words_of(command: Command, words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The variables in front of ``rmqctl`` and the arguments after it."""
    environment = {}
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if not words or words[0] != "rmqctl":
        raise TranscriptError(f"line {command.number}: only rmqctl can be run, not {command.line}")
    return environment, words[1:]


def outcome(command: Command) -> list[str]:
    """What a command says, as it stands in a transcript; of a pipe, what all say on stderr."""
    stages, target = stages_of(command)
    texts: list[str] = []
    out = ""
    for number, words in enumerate(stages):
        named, arguments = words_of(command, words)
        environment = ENVIRONMENT | named
        if number:  # what reads from a pipe reads a descriptor, which only a process has
            result = cli.run_process(*arguments, env={"PYTHONPATH": str(ROOT), **environment},
                                     stdin=out.encode())
        else:
            result = cli.run(*arguments, env=environment)
        out = result.out
        texts += result.err.splitlines()
    if target is not None:
        Path(target).write_text(out)
        out = ""
    lines = [line.rstrip() for line in (*out.splitlines(), *texts)]
    return lines + ([f"[exit {result.code}]"] if result.code else [])


def masked(lines: list[str], masks: list[tuple[str, str]]) -> list[str]:
    for pattern, text in masks:
        lines = [re.sub(pattern, text, line) for line in lines]
    return [line.rstrip() for line in lines]


def agree(shown: list[str], texts: list[str]) -> bool:
    """Compare an output with the page; lines in place of an `ELISION` may be any."""
    if ELISION not in shown:
        return texts == shown
    at = shown.index(ELISION)
    after = len(shown) - at - 1
    return len(texts) > at + after and texts[:at] == shown[:at] and (
        texts[len(texts) - after:] == shown[at + 1:])


def shortened(shown: list[str], real: list[str]) -> list[str]:
    """Leave out of a new output as much as the page left out of the old one."""
    if ELISION not in shown:
        return real
    at = shown.index(ELISION)
    after = len(shown) - at - 1
    if len(real) <= at + after:
        return real
    return [*real[:at], ELISION, *real[len(real) - after:]]


def run_shell(step: Shell, programs: Path) -> None:
    """Run the commands of a block; the first that fails is an error."""
    programs.mkdir(exist_ok=True)
    for name, words in (("python", ""), ("rmqctl", "-m rmqctl ")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}"$@"\n')
        program.chmod(0o755)
    environment = {**os.environ, **cli.QUIET_ENV, "PYTHONPATH": str(ROOT),
                   "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-e"], input="\n".join(step.lines) + "\n", env=environment,
                          text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, f"line {step.number}: {done.stdout}{done.stderr}"


def run_helper(directive: Directive) -> None:
    """``flip_bit store commitlog/0 120 3`` -> ``damage.flip_bit(Path("store"), ..., 120, 3)``."""
    name, folder, *words = shlex.split(directive.text)
    helper = getattr(damage, name, None)
    if helper is None or name.startswith("_"):
        raise TranscriptError(f"line {directive.number}: there is no helper {name}")
    # A file is called 00000000000000000000: only what is written like a number is one.
    number = re.compile("-?(0x[0-9a-f]+|0|[1-9][0-9]*)")
    helper(Path(folder), *(int(word, 0) if number.fullmatch(word) else word for word in words))


def place_store(directive: Directive, fixture) -> None:
    part = directive.text.strip()
    if part.startswith(INCIDENT):
        from tests.test_cases import FOLDER as CASES
        from tests.test_cases import built

        folder = built(CASES / part, Path("built").absolute())
        for path in sorted(folder.iterdir()):
            path.rename(path.name)
        folder.rmdir()
        return
    if part.startswith(TRACK_RECORD):
        from tests.track_record import build, stores

        case = stores.find(part.removeprefix(TRACK_RECORD))
        build.build(case, fixture("golden")(case.base), Path(directive.name))
        return
    if part == EXAMPLE:
        source = ROOT / EXAMPLE
    elif part == "tiny":
        source = fixture("tiny_base").root
    elif part == "retried":
        source = fixture("retried_base").root
    else:
        source = fixture("golden")(part if part.count("/") > 1 else f"{part}/store")
    snapshot.copy_tree(source, Path(directive.name))


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(FOLDER)) for p in FILES])
def test_transcript(path, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "Popen", Forked)
    play(path, request, keep_masked=True)


@pytest.mark.parametrize("path", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_what_a_page_shows_is_what_comes(path, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "Popen", Forked)
    Path(EXAMPLE).parent.mkdir()
    snapshot.copy_tree(ROOT / EXAMPLE, Path(EXAMPLE))
    with snapshot.assert_unchanged(Path(EXAMPLE)):
        play(path, request, keep_masked=False, programs=tmp_path.with_name(f"{tmp_path.name}-bin"))


def play(path, request, *, keep_masked, programs=None):
    """Run a session and compare. An update keeps real figures in a page, masks in a transcript.

    ``programs``: the folder for the program that `sh` blocks of `TASKS` run.
    """
    text = path.read_text()
    steps = parse(text, console=path.suffix == ".txt")
    masks = []
    differing = []
    skipped = False
    for step in steps:
        if isinstance(step, Directive):
            if step.kind == "store":
                place_store(step, request.getfixturevalue)
            elif step.kind == "run":
                run_helper(step)
            elif step.kind == "skip":
                skipped = True
            else:
                pattern, _, replacement = step.text.partition(" -> ")
                masks.append((pattern, replacement))
        elif isinstance(step, File):
            Path(step.name).write_text("\n".join(step.lines) + "\n")
        elif isinstance(step, Shell):
            if path in TASKS and not skipped:
                run_shell(step, programs)
            skipped = False
        elif isinstance(step, Command):
            real = outcome(step)
            masked_lines = masked(real, masks)
            # Blank lines at the end of a block separate it from what follows; they are no output.
            shown = list(step.expected)
            tail = []
            while shown and not shown[-1].strip() and len(shown) > len(masked_lines):
                tail.append(shown.pop())
            if not agree(masked(shown, masks), masked_lines):
                differing.append((step.line, shown, masked_lines))
                step.expected = [*shortened(shown, masked_lines if keep_masked else real), *tail]
    if differing and wants_update(request.config):
        path.write_text(render(steps))
        return
    for line, shown, masked_lines in differing:
        assert "\n".join(masked_lines) == "\n".join(shown), line


def test_there_are_transcripts():
    assert len(FILES) >= 1


@pytest.mark.parametrize("path", [*FILES, *PAGES],
                         ids=[str(p.relative_to(ROOT)) for p in (*FILES, *PAGES)])
def test_a_transcript_survives_an_update_that_changes_nothing(path):
    assert render(parse(path.read_text(), console=path.suffix == ".txt")) == path.read_text()


def test_what_breaks_the_rules_is_refused():
    for line in ("$ rm -rf store", "$ RMQCTL_STORE=x", "$ rmqctl commands | rm -rf store",
                 "$ rmqctl commands |"):
        command = Command(1, line)
        with pytest.raises(TranscriptError):
            words_of(command, stages_of(command)[0][-1])
    for text in ("```console\nstray output\n```\n", "```console\n$ rmqctl info\n",
                 "```json one.jsonl\n{}\n"):
        with pytest.raises(TranscriptError):
            parse(text)
    for text in ("run: no_such_helper store\n", "run: _patching store\n"):
        with pytest.raises(TranscriptError):
            run_helper(next(s for s in parse(text) if isinstance(s, Directive)))


def test_an_output_may_be_shortened_once():
    shown = ["a", ELISION, "c"]
    assert agree(shown, ["a", "b", "c"])
    assert not agree(shown, ["a", "c"])
    assert not agree(shown, ["a", "b", "d"])
    assert not agree(shown, ["b", "b", "c"])
    assert not agree([ELISION, ELISION], ["a", "b"])
    assert agree(["a", ELISION], ["a", "b"])
    assert shortened(shown, ["A", "1", "2", "C"]) == ["A", ELISION, "C"]
    assert shortened(shown, ["A", "C"]) == ["A", "C"]
    assert shortened(["a"], ["A", "b"]) == ["A", "b"]


def test_the_first_command_of_a_block_that_fails_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_shell(Shell(1, ["rmqctl --version > version"]), tmp_path / "bin")
    assert Path("version").read_text()
    with pytest.raises(AssertionError, match="line 7"):
        run_shell(Shell(7, ["rmqctl info --no-such-option", "true"]), tmp_path / "bin")


def test_parsing():
    steps = parse(
        "# T\nstore: 5.3.3/basic\nmask: [0-9]+ s -> N s\n"
        "<!-- store disk: examples/store -->\n<!-- a comment: nothing more -->\n```console\n"
        "$ A=b rmqctl info 'x y'\nout\n[exit 1]\n$ rmqctl\n```\nend\n"
        "```json one.jsonl\n{}\n$ no command\n```\n"
        "<!-- skip: needs a network -->\n```sh\nno file\n```\n"
    )
    directives = [s for s in steps if isinstance(s, Directive)]
    commands = [s for s in steps if isinstance(s, Command)]
    assert [(d.kind, d.name, d.text) for d in directives] == [
        ("store", "store", "5.3.3/basic"),
        ("mask", "store", "[0-9]+ s -> N s"),
        ("store", "disk", "examples/store"),
        ("skip", "store", "needs a network"),
    ]
    assert [d.hidden for d in directives] == [False, False, True, True]
    assert [s for s in steps if isinstance(s, Shell)] == [Shell(18, ["no file"])]
    assert stages_of(commands[0]) == ([["A=b", "rmqctl", "info", "x y"]], None)
    assert words_of(commands[0], ["A=b", "rmqctl", "info", "x y"]) == ({"A": "b"}, ["info", "x y"])
    assert commands[0].expected == ["out", "[exit 1]"]
    assert commands[1].expected == []
    assert [s for s in steps if isinstance(s, File)] == [
        File("```json one.jsonl", "one.jsonl", ["{}", "$ no command"])]
    assert stages_of(Command(1, "$ A=b rmqctl read x | rmqctl append > y")) == (
        [["A=b", "rmqctl", "read", "x"], ["rmqctl", "append"]], "y")


def test_helpers_get_numbers_and_names(monkeypatch):
    seen = []
    monkeypatch.setattr(damage, "flip_bit", lambda *args: seen.append(args))
    run_helper(Directive(1, "run", "store", "flip_bit store commitlog/0000 0x10 3"))
    run_helper(Directive(1, "run", "store", "flip_bit store 00000000000000000000 12 -1"))
    assert seen == [
        (Path("store"), "commitlog/0000", 16, 3),
        (Path("store"), "00000000000000000000", 12, -1),
    ]
