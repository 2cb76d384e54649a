"""Nothing of a store is deleted or shortened, and no code that could creeps in unseen.

Every call in the package that takes a name, a folder or bytes away stands in the list below with
the reason why it can never meet a file that was there before rmqctl came.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.source import PACKAGE, together, trees

ANY = {"unlink", "rmtree", "rmdir", "removedirs", "ftruncate", "O_TRUNC"}
OF_A_MODULE = {"remove", "truncate"}
"""Names that other things than files have too."""
MODULES = {"os", "shutil"}
OWN = "a file rmqctl is just making, which nobody else has seen"
SCRATCH = "below a scratch folder, all of which rmqctl made"
BACKUP = "a file that rmqctl copied into a backup"
COPY = f"{SCRATCH}, or of a new store"
ALLOWED = {
    ("case/folder.py", "Folder.finish", "unlink"): "the mark of an evidence folder it made",
    ("repair/sources/records.py", "LaidOut.__init__", "rmtree"): "its own folder in the scratch",
    ("repair/sources/records.py", "LaidOut._open", "ftruncate"): "a new file in that folder",
    ("export/one_file.py", "export_file", "unlink"): "the name of its own it wrote under",
    ("repair/executor/planned.py", "planned", "rmdir"): "the empty scratch folder",
    ("commands/app/helptext.py", "HelpMixin.format_epilog", "open for writing"): "typer's page",
    ("commands/app/helptext.py", "HelpMixin.format_help_text", "open for writing"): "typer's page",
    ("commands/app/helptext.py", "common_options", "open for writing"): "typer's page",
    ("backup/growing.py", "Copies.remove", "unlink"): BACKUP,
    ("backup/points.py", "end", "unlink"): "rmqctl's note of a run that did not end",
    ("backup/growing.py", "Copies._open", "ftruncate"): "only ever longer",
    ("backup/keeping.py", "_remove", "unlink"): f"{BACKUP}, which --keep asks for",
    ("engine/dispatch/index.py", "write_whole", "O_TRUNC"): SCRATCH,
    ("engine/small_files.py", "_replace", "ftruncate"):
        "abort gets the content a broker writes",
    ("engine/small_files.py", "create_abort", "unlink"):
        "the abort file of a start that failed",
    ("engine/small_files.py", "remove_abort", "unlink"):
        "the mark of a running writer, at its clean end",
    ("engine/small_files.py", "CheckpointFile.flush", "ftruncate"): "only ever longer",
    ("ext/serve/grpc/front.py", "Front.connect", "unlink"): "its own socket in a temporary folder",
    ("ext/serve/grpc/front.py", "Front.close", "rmtree"): "that temporary folder",
    ("ext/serve/producing/timer_files.py", "OpenTimerFiles._open", "ftruncate"): "a new wheel",
    ("ext/serve/producing/timer_files.py", "OpenTimerFiles._room", "ftruncate"): "a new file",
    ("engine/config/create.py", "_unmark", "unlink"): "the mark of an init that is not finished",
    ("engine/log/log_files.py", "_remove_unused", "unlink"):
        "a log file made ahead, never written to",
    ("repair/executor/prune.py", "forget_note", "unlink"): "rmqctl's note of what a repair lost",
    ("files/durable.py", "lay_out", "ftruncate"): OWN,
    ("files/durable.py", "new_file", "unlink"): OWN,
    ("files/durable.py", "new_whole_file", "unlink"): OWN,
    ("engine/opening.py", "_unlink", "unlink"): "rmqctl's own notes of what is to be done again",
    ("files/durable.py", "remove_folder", "rmtree"):
        "a folder beside its target, all of which one export or one write made",
    ("files/durable.py", "replace_file", "O_TRUNC"): "the staged file below .rmqctl",
    ("files/durable.py", "replace_file", "unlink"): "the staged file",
    ("export/manifest.py", "Manifest.__enter__", "open for writing"): "in its staging",
    ("export/attempt.py", "Attempt.remove", "rmtree"): "what one attempt exported",
    ("ext/spark/rebuild/rebuild.py", "_remove", "rmtree"): SCRATCH,
    ("ext/spark/rebuild/index_tasks.py", "_take_away", "unlink"): SCRATCH,
    ("ext/spark/session.py", "_settings", "open for writing"): "in the session's temporary folder",
    ("ext/spark/session.py", "session", "rmtree"): "the session's temporary folder",
    ("ext/spark/session.py", "session", "unlink"): "the session's own log",
    ("ext/spark/sql.py", "_settle", "unlink"):
        "what Hadoop puts beside files of a query's output",
    ("ext/spark/source/runs.py", "_joined", "unlink"): "a run of rows in the folder of one write",
    ("repair/executor/apply_step.py", "StepApplier._remove_folders", "rmdir"):
        "empty folders the repair made",
    ("repair/executor/patch.py", "set_length", "ftruncate"):
        "longer; and back to what it was, when what a patch added beyond the end is taken back",
    ("repair/rebuild/seed.py", "_cut_files", "truncate"): SCRATCH,
    ("repair/rebuild/seed.py", "seed_batch", "O_TRUNC"): SCRATCH,
    ("repair/rebuild/seed.py", "seed_batch", "ftruncate"): SCRATCH,
    ("repair/salvage/log_files.py", "Files._shortened", "truncate"): SCRATCH,
    ("repair/salvage/log_files.py", "Files._with_its_name", "truncate"): SCRATCH,
    ("repair/scratch.py", "Scratch.clear", "rmtree"): SCRATCH,
    ("repair/scratch.py", "Scratch.remove", "rmtree"): SCRATCH,
    ("files/rocksdb_writer.py", "NewDatabase.__init__", "rmtree"): SCRATCH,
    ("store/rocksdb/mirror.py", "mirror", "open for writing"): "CURRENT of the temporary copy",
    ("store/rocksdb/mirror.py", "_link", "open for writing"): "a table of the temporary copy",
    ("files/remote/archive.py", "_Spool.__init__", "ftruncate"): "a temporary file without a name",
    ("store/rocksdb/mirror.py", "_copy", "open for writing"): "a file of the temporary copy",
    ("files/sparse.py", "copy_sparse", "O_TRUNC"): COPY,
    ("repair/salvage/bulk.py", "Bulk.write", "ftruncate"): SCRATCH,
    ("repair/dledger/index.py", "index_steps", "ftruncate"): SCRATCH,
    ("repair/sources/copying.py", "Copying._written", "O_TRUNC"): SCRATCH,
    ("repair/sources/copying.py", "Copying._written", "ftruncate"): SCRATCH,
    ("files/sparse.py", "copy_sparse", "ftruncate"): COPY,
    ("repair/executor/staging.py", "clear", "rmtree"):
        "what a repair staged that was never committed, or keeps and a user gave up: undo --prune",
    ("ext/tiered/index/compacted_form.py", "write", "unlink"): OWN,
    ("ext/tiered/files/writer.py", "_truncate", "ftruncate"):
        "a block that could not be appended whole; and what `cut` has a copy of, forced to disk",
    ("ext/tiered/index/open_file.py", "OpenIndexFile._open", "ftruncate"): "only ever longer",
    ("kernel/constants.py", "", "open for writing"): "the package's own source, by its developers",
    ("ext/tiered/recover/damaged.py", "with_units", "open for writing"): SCRATCH,
    ("ext/tiered/recover/index.py", "build_files", "open for writing"): SCRATCH,
    ("ext/tiered/recover/queue.py", "QueueRecovery._write_file", "open for writing"): SCRATCH,
    ("ext/tiered/recover/queue.py", "QueueRecovery._write_units", "open for writing"): SCRATCH,
    ("ext/tiered/recover/survey.py", "copy_ranges", "open for writing"): SCRATCH,
    ("ext/tiered/recover/queue.py", "remove_file", "unlink"): SCRATCH,
    ("ext/tiered/recover/recover.py", "_Recovery.plan", "rmtree"): SCRATCH,
    ("ext/tiered/recover/survey.py", "survey", "open for writing"): SCRATCH,
}


def destroyers(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(function, what it uses) for everything that takes away, and for files opened with "w"."""
    def walk(node: ast.AST, where: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            inner = where
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{where}.{child.name}".strip(".")
            if isinstance(child, ast.Attribute) and (
                    child.attr in ANY or (child.attr in OF_A_MODULE and _is_module(child.value))):
                yield where, child.attr
            if isinstance(child, ast.ImportFrom) and child.module in ("os", "shutil"):
                yield from ((where, name.name) for name in child.names
                            if name.name in ANY | OF_A_MODULE)
            if isinstance(child, ast.Call) and _opens_anew(child):
                yield where, "open for writing"
            yield from walk(child, inner)

    yield from walk(tree, "")


def _is_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in MODULES


def _opens_anew(call: ast.Call) -> bool:
    """open(…, "w…") and what is like it; "x" makes new files only."""
    name = call.func.id if isinstance(call.func, ast.Name) else (
        call.func.attr if isinstance(call.func, ast.Attribute) else "")
    if name in ("write_text", "write_bytes"):
        return True
    if name != "open":
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(arg, ast.Constant) and isinstance(arg.value, str)
               and arg.value.strip("bt+") == "w" for arg in given)


@cache
def all_destroyers() -> frozenset[tuple[str, str, str]]:
    return frozenset((str(path.relative_to(PACKAGE)), where, what) for path, tree in trees().items()
                     for where, what in destroyers(tree))


@together
@pytest.mark.long
def test_whatever_takes_away_is_known():
    strays = all_destroyers() - ALLOWED.keys()
    assert not strays, "why can this never meet a file of a store? " + "; ".join(
        f"{file}: {where} uses {what}" for file, where, what in sorted(strays))


@together
@pytest.mark.long
def test_the_list_has_nothing_that_is_not_there():
    assert not ALLOWED.keys() - all_destroyers()


@pytest.mark.parametrize(("source", "what"), [
    ("import os\ndef f():\n    os.unlink('x')", "unlink"),
    ("from pathlib import Path\nPath('x').unlink()", "unlink"),
    ("from os import remove", "remove"), ("import shutil\nshutil.rmtree('x')", "rmtree"),
    ("os.remove('x')", "remove"), ("os.truncate('x', 0)", "truncate"),
    ("open('x', 'wb')", "open for writing"), ("open('x', mode='w+')", "open for writing"),
    ("p.write_bytes(b'')", "open for writing"), ("os.open('x', os.O_TRUNC)", "O_TRUNC"),
])
def test_the_check_can_fail(source, what):
    assert what in {destroyer for _, destroyer in destroyers(ast.parse(source))}


def test_the_check_knows_what_is_harmless():
    assert not list(destroyers(ast.parse(
        "x.remove(1)\nopen('x')\nopen('x', 'xb')\nopen('x', 'r+b')")))
