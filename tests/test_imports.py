"""The house: which room may import which, who may print, what is loaded when.

There are three rings: inspection, change (`CHANGE`) and the extensions (``rmqctl/ext``). Inspection
imports no change, and neither of them an extension. Within the rings the rooms are layers.
A module may import from its own room and from those named for it here; what is missing from the
table is not allowed.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tests.support.source import PACKAGE, nodes, together, trees

pytestmark = together

# The ground everybody stands on: rmqctl/__init__.py (the version), actions.py, errors.py,
# installation.py, lazy_dataclass.py, parse_values.py, phrases.py and vfs.py.
GROUND = {"", "actions", "errors", "installation", "lazy_dataclass", "parse_values", "phrases",
          "vfs"}
LIBRARY = {"formats", "scan", "store"}
MAY_IMPORT: dict[str, set[str]] = {
    "formats": set(),
    "files": {"formats", "scan"},
    "kernel": {"formats"},
    "scan": {"formats", "kernel"},
    "store": {"formats", "scan"},
    "broker": LIBRARY,
    "damage": LIBRARY | {"broker"},
    "checks": LIBRARY | {"kernel", "files", "broker", "damage"},
    "engine": LIBRARY | {"kernel", "files", "broker"},
    "repair": LIBRARY | {"files", "broker", "damage", "checks", "engine"},
    "backup": LIBRARY | {"kernel", "files", "broker", "checks", "repair"},
    "export": LIBRARY | {"files", "checks"},
    "sql": LIBRARY | {"files", "broker", "checks"},
    "case": LIBRARY | {"files", "checks"},
    "output": set(),
    "commands": LIBRARY | {"kernel", "files", "broker", "checks", "engine", "repair", "backup",
                           "export", "sql", "case", "output", "ext.tiered", "ext.spark",
                           "ext.browse", "ext.report",
                           "ext.serve", "ext.payloads", "api", "reports"},
    "ext": set(),
    "ext.payloads": {"formats", "store"},
    "ext.tiered": LIBRARY | {"kernel", "files", "broker", "damage", "checks", "engine", "repair",
                            "export"},
    "ext.spark": LIBRARY | {"kernel", "files", "broker", "checks", "engine", "repair", "export",
                            "sql", "ext.tiered"},
    "ext.serve.remoting": {"formats"},
    "ext.serve": LIBRARY | {"kernel", "files", "broker", "engine", "repair",
                            "ext.serve.remoting"},
    "ext.browse": LIBRARY | {"files", "checks", "export", "output"},
    "ext.report": LIBRARY | {"broker", "checks", "output"},
    "": {"api"},  # what `rmqctl.open` loads
    "api": LIBRARY | {"broker", "checks", "repair", "reports", "sql", "ext.payloads", "ext.tiered"},
    "reports": LIBRARY | {"broker", "checks", "repair"},
    "pipeline": {"ext.spark"},
    "testing": LIBRARY | {"ext.serve.remoting"},
    "cli": {"kernel", "commands", "output"},
    "__main__": {"cli"},
}
CHANGE = {"engine", "repair", "backup"}
#: What is no ring: the commands, the program, and the ways in for other programs.
DOORS = {"commands", "cli", "__main__", "", "api", "reports", "testing", "pipeline"}
#: Modules that a package may import beyond its row: what only looks, in a package that writes.
LOOKING = {("store", "rmqctl.files.lock_probe"), ("checks", "rmqctl.files.lock_probe"),
           ("store", "rmqctl.files.remote.tree")}
MAY_PRINT = {"output", "cli", "__main__"}
#: Modules of ``commands`` that speak for typer and for the end of a run, never for data.
SPEAKERS = {"lazy.py", "helptext.py", "exit_codes.py"}


def room_of(path: Path) -> str:
    """The package below rmqctl: ``formats``; ``cli`` for rmqctl/cli.py, "" for __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return room_named(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def room_named(module: str) -> str:
    """The room of a module below rmqctl: an extension is one of its own."""
    parts = module.split(".")
    wide = next((room for length in (3, 2) if (room := ".".join(parts[:length])) in MAY_IMPORT
                 and parts[0] == "ext"), None)
    return wide or parts[0]


@cache
def imports(tree: ast.AST) -> list[tuple[str, int]]:
    """Every module named by an import statement, anywhere in the file, with its line."""
    return list(_imports(tree))


def _imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in nodes(tree):
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
    top = rest.partition(".")[0]
    is_ours = (PACKAGE / top).is_dir() or (PACKAGE / f"{top}.py").is_file()
    return room_named(rest) if is_ours else ""


def strays(tree: ast.AST, room: str) -> list[str]:
    """What a module of ``room`` imports and must not."""
    allowed = MAY_IMPORT.get(room, set()) | GROUND | {room}
    return [
        f"line {line}: {name}"
        for name, line in imports(tree)
        if (target := room_imported(name)) is not None
        and target not in allowed and (room, name) not in LOOKING
    ]


def offenders(of: Callable[[Path], list[str]]) -> list[str]:
    """``package/module.py line 3: what`` for everything that ``of`` says of any module."""
    return [f"{path.relative_to(PACKAGE)} {what}" for path in trees() for what in of(path)]


def voices(tree: ast.AST) -> list[str]:
    """Where a module speaks: print, sys.stdout, sys.stderr, typer.echo."""
    texts = []
    for node in nodes(tree):
        if isinstance(node, ast.Name) and node.id == "print":
            texts.append(f"line {node.lineno}: print")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            spoken = f"{node.value.id}.{node.attr}"
            if spoken in ("sys.stdout", "sys.stderr", "sys.__stdout__", "typer.echo"):
                texts.append(f"line {node.lineno}: {spoken}")
        if isinstance(node, ast.ImportFrom) and node.module in ("sys", "rich", "typer"):
            texts += [
                f"line {node.lineno}: {node.module}.{alias.name}"
                for alias in node.names
                if alias.name in ("stdout", "stderr", "print", "echo")
            ]
    return texts


def named(tree: ast.Module, texts: set[str]) -> Iterator[str]:
    """The modules of ours that this one imports: on loading, within functions, for its types."""
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in texts or node.module in texts:
                    yield name if name in texts else node.module


def circles(graph: dict[str, list[str]]) -> list[list[str]]:
    """Modules that lead back to themselves, each circle once."""
    texts: list[list[str]] = []
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            texts.append([*trail[trail.index(name):], name])
        elif name not in done:
            for target in graph[name]:
                visit(target, [*trail, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    return texts


def test_imports_go_downwards_only():
    unknown = {room_of(path) for path in trees()} - set(MAY_IMPORT) - GROUND
    assert not unknown, f"new packages: decide what {unknown} may import"
    assert offenders(lambda path: strays(trees()[path], room_of(path))) == []


def ring(room: str) -> int | None:
    """0 inspection, 1 change, 2 an extension; None for a door, or what knows no ring."""
    if room in DOORS | GROUND:
        return None
    return 2 if room.partition(".")[0] == "ext" else int(room in CHANGE)


def test_no_ring_imports_an_outer_one():
    """The core imports no extension, and inspection imports no change."""
    assert [(room, other) for room, others in MAY_IMPORT.items() for other in others
            if (own := ring(room)) is not None and (ring(other) or 0) > own] == []


def test_commands_load_extensions_only_when_they_run():
    """At a module's top only types are imported, so that every command shows its help."""
    assert offenders(lambda path: [] if room_of(path) not in DOORS - {"pipeline", "testing"}
                     or path.name == "serve_shown.py" else [
        f"line {node.lineno}: {node.module}" for node in trees()[path].body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rmqctl.ext")
    ]) == []


def test_no_two_modules_import_each_other():
    """No circles, however long, and none hidden in functions or behind TYPE_CHECKING."""
    names = {".".join(("rmqctl", *path.relative_to(PACKAGE).with_suffix("").parts)): path
             for path in trees()}
    graph = {name: sorted(set(named(trees()[path], set(names)))) for name, path in names.items()}
    assert circles(graph) == []


def test_only_output_and_the_program_speak():
    assert offenders(lambda path: [] if room_of(path) in MAY_PRINT or path.name in SPEAKERS
                     else voices(trees()[path])) == []


def test_spark_stays_in_its_package():
    assert offenders(lambda path: [] if room_of(path) == "ext.spark" else [
        f"line {line}: {name}" for name, line in imports(trees()[path])
        if name.partition(".")[0] == "pyspark" or (name == "pandas" and room_of(path) != "api")
    ]) == []


def test_arrow_stays_where_its_tables_are_the_product():
    """Nobody else imports it, or what does: most installations have none."""
    arrow = ("rmqctl.scan.columns", "rmqctl.scan.tables", "rmqctl.store.queue.unit_columns")
    assert offenders(lambda path: [] if room_of(path) in ("ext.spark", "export", "sql"
                                                          ) or path.stem in (
        "columns", "tables", "unit_columns", "read_back", "page_columns", "schemas", "avro_reader",
        "api",
    ) else [
        f"line {line}: {name}" for name, line in imports(trees()[path])
        if name.startswith(arrow) or name.partition(".")[0] in ("pyarrow", "fastavro")]) == []


def test_formats_do_no_io_and_have_no_clock():
    banned = {"os", "io", "pathlib", "mmap", "time", "shutil", "tempfile", "subprocess"}

    def wrong(path: Path) -> list[str]:
        if room_of(path) != "formats":
            return []
        return [f"line {line}: {name}" for name, line in imports(trees()[path])
                if name.partition(".")[0] in banned] + [
            f"line {node.lineno}: open" for node in nodes(trees()[path])
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            and node.func.id == "open"]

    assert offenders(wrong) == []


def test_a_folder_can_be_taken_in_at_a_glance():
    """A folder holds at most 24 modules; more are packages that nobody has named yet."""
    full = Counter(path.parent for path in trees() if path.name != "__init__.py")
    assert {str(folder): count for folder, count in full.items() if count > 24} == {}


def test_every_package_says_what_it_is():
    assert offenders(lambda path: [] if path.name != "__init__.py" or ast.get_docstring(
        trees()[path]) else ["has no docstring"]) == []


def test_the_checks_can_fail():
    parse = ast.parse
    assert strays(parse("from rmqctl.store import files"), "formats") == [
        "line 1: rmqctl.store"]
    assert strays(parse("def f():\n    import rmqctl.commands.info"), "checks") != []
    assert strays(parse("from rmqctl import output"), "store") == [
        "line 1: rmqctl.output",
    ]
    assert strays(parse("from rmqctl import __version__\nimport os\nimport rmqctl.errors"),
                  "scan") == []
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"]}) == [["b", "c", "b"]]
    assert voices(parse("print(1)")) == ["line 1: print"]
    assert voices(parse("import sys\nsys.stdout.write('x')")) == ["line 2: sys.stdout"]
    assert voices(parse("from rich import print")) == ["line 1: rich.print"]
