"""Golden transcripts: ``$ rmqctl ...`` and what it prints. See transcripts/README.md.

The console blocks of README.md, docs/ and examples/ are run the same way, so no page shows an
output that the program does not give.
"""

from __future__ import annotations

import re
import shlex
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
ENVIRONMENT = {"COLUMNS": "100"}
_FILE = re.compile(r"```\w+ ([\w.-]+)")
_DIRECTIVE = re.compile(r"(?P<open><!-- )?(store|run|mask)(?: ([\w.-]+))?: +(.+?)(?(open) -->)")


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
    """``store``, ``run`` or ``mask`` with its text; ``name`` is what a store is called.

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
class Prose:
    """A line that is only read by people."""

    line: str


Step = Command | Directive | File | Prose


def parse(text: str, *, console: bool = False) -> list[Step]:
    """Split a transcript; ``console`` means the whole file is one console block (``.txt``)."""
    steps: list[Step] = []
    inside = console
    file: File | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if file is not None:
            if line == "```":
                file = None
            else:
                file.lines.append(line)
        elif not console and (match := _FILE.fullmatch(line)):
            file = File(line, match[1])
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
    said: list[str] = []
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
        said += result.err.splitlines()
    if target is not None:
        Path(target).write_text(out)
        out = ""
    lines = [line.rstrip() for line in (*out.splitlines(), *said)]
    return lines + ([f"[exit {result.code}]"] if result.code else [])


def masked(lines: list[str], masks: list[tuple[str, str]]) -> list[str]:
    for pattern, text in masks:
        lines = [re.sub(pattern, text, line) for line in lines]
    return [line.rstrip() for line in lines]


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
        for each in sorted(folder.iterdir()):
            each.rename(each.name)
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
        play(path, request, keep_masked=False)


def play(path, request, *, keep_masked):
    """Run a session and compare. An update keeps real figures in a page, masks in a transcript."""
    text = path.read_text()
    steps = parse(text, console=path.suffix == ".txt")
    masks = []
    differing = []
    for step in steps:
        if isinstance(step, Directive):
            if step.kind == "store":
                place_store(step, request.getfixturevalue)
            elif step.kind == "run":
                run_helper(step)
            else:
                pattern, _, replacement = step.text.partition(" -> ")
                masks.append((pattern, replacement))
        elif isinstance(step, File):
            Path(step.name).write_text("\n".join(step.lines) + "\n")
        elif isinstance(step, Command):
            real = outcome(step)
            said = masked(real, masks)
            # Blank lines at the end of a block separate it from what follows; they are no output.
            shown = list(step.expected)
            tail = []
            while shown and not shown[-1].strip() and len(shown) > len(said):
                tail.append(shown.pop())
            if said != masked(shown, masks):
                differing.append((step.line, shown, said))
                step.expected = [*(said if keep_masked else real), *tail]
    if differing and wants_update(request.config):
        path.write_text(render(steps))
        return
    for line, shown, said in differing:
        assert "\n".join(said) == "\n".join(shown), line


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


def test_parsing():
    steps = parse(
        "# T\nstore: 5.3.3/basic\nmask: [0-9]+ s -> N s\n"
        "<!-- store disk: examples/store -->\n<!-- a comment: nothing more -->\n```console\n"
        "$ A=b rmqctl info 'x y'\nout\n[exit 1]\n$ rmqctl\n```\nend\n"
        "```json one.jsonl\n{}\n$ no command\n```\n```sh\nno file\n```\n"
    )
    directives = [s for s in steps if isinstance(s, Directive)]
    commands = [s for s in steps if isinstance(s, Command)]
    assert [(d.kind, d.name, d.text) for d in directives] == [
        ("store", "store", "5.3.3/basic"),
        ("mask", "store", "[0-9]+ s -> N s"),
        ("store", "disk", "examples/store"),
    ]
    assert [d.hidden for d in directives] == [False, False, True]
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
