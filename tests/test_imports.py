"""The house: which room may import which, who may print, what is loaded when.

The rooms are layers. A module may import from its own room and from those named for it here;
what is missing from the table is not allowed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "rmqctl"

# The ground everybody stands on: rmqctl/__init__.py (the version), errors.py and texts.py.
GROUND = {"", "errors", "texts"}
LIBRARY = {"formats", "scan", "store"}
MAY_IMPORT: dict[str, set[str]] = {
    "formats": set(),
    "scan": {"formats"},
    "store": {"formats", "scan"},
    "checks": LIBRARY,
    "engine": LIBRARY,
    "repair": LIBRARY | {"checks", "engine"},
    "tiered": LIBRARY | {"checks", "engine", "repair"},
    "pipeline": LIBRARY | {"checks", "engine", "repair", "tiered"},
    "output": set(),
    "commands": LIBRARY | {"checks", "engine", "repair", "tiered", "pipeline", "output"},
    "ending": {"output"},
    "cli": {"commands", "output", "ending"},
    "__main__": {"cli"},
}
MAY_PRINT = {"output", "cli", "ending", "__main__"}

MODULES = sorted(PACKAGE.rglob("*.py"))
IDS = [str(path.relative_to(PACKAGE)) for path in MODULES]


def room_of(path: Path) -> str:
    """``formats`` for rmqctl/formats/message.py, ``cli`` for rmqctl/cli.py, "" for __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module named by an import statement, anywhere in the file, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            assert node.module is not None
            yield node.module, node.lineno
            if node.module == "rmqctl":
                for alias in node.names:
                    yield f"rmqctl.{alias.name}", node.lineno


def room_imported(name: str) -> str | None:
    """The room a module name belongs to; None when it is not ours."""
    first, _, rest = name.partition(".")
    if first != "rmqctl":
        return None
    room = rest.partition(".")[0]
    return room if (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file() else ""


def strays(source: str, room: str) -> list[str]:
    """What a module of ``room`` imports and must not."""
    allowed = MAY_IMPORT.get(room, set()) | GROUND | {room}
    return [
        f"line {line}: {name}"
        for name, line in imports(ast.parse(source))
        if (target := room_imported(name)) is not None and target not in allowed
    ]


def voices(source: str) -> list[str]:
    """Where a module speaks: print, sys.stdout, sys.stderr, typer.echo."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id == "print":
            found.append(f"line {node.lineno}: print")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            spoken = f"{node.value.id}.{node.attr}"
            if spoken in ("sys.stdout", "sys.stderr", "sys.__stdout__", "typer.echo"):
                found.append(f"line {node.lineno}: {spoken}")
        if isinstance(node, ast.ImportFrom) and node.module in ("sys", "rich", "typer"):
            found += [
                f"line {node.lineno}: {node.module}.{alias.name}"
                for alias in node.names
                if alias.name in ("stdout", "stderr", "print", "echo")
            ]
    return found


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_imports_go_upwards_only(path):
    room = room_of(path)
    assert room in MAY_IMPORT or room in GROUND, f"a new room: decide what {room} may import"
    assert strays(path.read_text(), room) == []


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_only_output_and_the_program_speak(path):
    if room_of(path) in MAY_PRINT or path.name in ("lazy.py", "helptext.py"):
        # lazy and helptext are typer's side of the program: they show help, never data.
        return
    assert voices(path.read_text()) == []


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_spark_stays_in_its_room(path):
    if room_of(path) == "pipeline":
        return
    names = [name for name, _ in imports(ast.parse(path.read_text()))]
    assert not [name for name in names if name.partition(".")[0] in ("pyspark", "pandas")]


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_formats_and_output_do_no_io_they_should_not(path):
    """formats is bytes <-> records: it opens nothing and has no clock."""
    if room_of(path) != "formats":
        return
    tree = ast.parse(path.read_text())
    used = {name.partition(".")[0] for name, _ in imports(tree)}
    assert not used & {"os", "io", "pathlib", "mmap", "time", "shutil", "tempfile", "subprocess"}
    calls = {n.func.id for n in ast.walk(tree)
             if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}  # fmt: skip
    assert "open" not in calls


def test_the_checks_can_fail():
    assert strays("from rmqctl.store import files", "formats") == ["line 1: rmqctl.store"]
    assert strays("def f():\n    import rmqctl.commands.info", "checks") != []
    assert strays("from rmqctl import output", "store") == [
        "line 1: rmqctl.output",
    ]
    assert strays("from rmqctl import __version__\nimport os\nimport rmqctl.errors", "scan") == []
    assert voices("print(1)") == ["line 1: print"]
    assert voices("import sys\nsys.stdout.write('x')") == ["line 2: sys.stdout"]
    assert voices("from rich import print") == ["line 1: rich.print"]
