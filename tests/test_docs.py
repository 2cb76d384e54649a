"""The documents say what the program does: no command undocumented, no word out of date."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest
from construct import Struct

from rmqctl import formats
from rmqctl.checks.findings import CATEGORIES
from rmqctl.commands import EFFECTS, REGISTRY
from rmqctl.commands.app.describe import parameters
from rmqctl.commands.app.lazy import load
from rmqctl.errors import ExitCode
from rmqctl.formats import layout
from rmqctl.formats.kinds import KINDS
from rmqctl.formats.local import index_file, message
from tests.support.language import PAGE, Text, doc_pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MOST_BYTES = 300_000
"""Of README.md, CHANGELOG.md and docs/, without the Chinese pages and those that are generated."""
PAGES = [*sorted(ROOT.glob("*.md")), *doc_pages(), *sorted((ROOT / "examples").rglob("*.md"))]


@cache
def generator():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> str:
    return generator().reference()


@pytest.fixture(scope="module")
def generated_pages() -> dict[str, str]:
    """The pages that Git ignores, by their path below docs/reference."""
    return generator().pages()


def test_the_folders_are_those_of_diataxis():
    folders = {path.name for path in DOCS.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders == {"tutorial", "howto", "reference", "explanation"}
    assert list(DOCS.glob("*.md")) == []
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert all(f"/docs/reference/{name}/" in ignored for name in generator().GENERATED)


def test_the_documentation_is_short():
    pages = [page for page in (*doc_pages(), ROOT / "README.md", ROOT / "CHANGELOG.md")
             if not page.name.endswith(".zh-CN.md")]
    assert sum(page.stat().st_size for page in pages) <= MOST_BYTES
    assert len((ROOT / "README.md").read_text().splitlines()) < 250


def test_the_page_of_the_schema_is_current():
    page = DOCS / "reference" / "schema.md"
    assert generator().schema_page() == page.read_text(), "run `make docs`"


def test_each_command_finding_and_format_has_a_page(generated_pages):
    wanted = {f"commands/{spec.name[0]}" for spec in REGISTRY}
    wanted |= {f"findings/{name}" for name in CATEGORIES}
    wanted |= {f"formats/{generator().file_of(kind)}" for kind in KINDS}
    assert wanted <= {path.removesuffix(".md") for path in generated_pages}
    for folder in generator().GENERATED:
        index = generated_pages[f"{folder}/README.md"]
        assert all(f"]({Path(path).name}" in index for path in generated_pages
                   if path.startswith(f"{folder}/") and path != f"{folder}/README.md")


@pytest.mark.long
def test_a_page_made_has_no_forbidden_word_and_no_link_astray(generated_pages):
    for path, text in generated_pages.items():
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        assert Text(PAGE, path, 1, prose).faults() == [], path
        for target in re.findall(r"\]\(([^)]+)\)", prose):
            name, _, anchor = target.partition("#")
            there = f"{Path(path).parent}/{name}" if name else path
            assert there in generated_pages, (path, target)
            assert not anchor or anchor in anchors(generated_pages[there]), (path, target)
        assert [what for line in commands_in(text) if (what := unknown(line))] == [], path


def test_every_field_of_every_layout_has_a_meaning():
    described = {}
    for name, page in tomllib.loads((DOCS / "formats.toml").read_text()).items():
        for title, part in page.get("layout", {}).items():
            declaration = generator().declaration(part["of"])
            fields = {field for _, _, field, _ in generator().layout_rows(declaration)}
            assert fields == part.keys() - {"of", "about"}, (name, title)
            described[id(declaration)] = part["of"]
    missing = set()
    for module in pkgutil.walk_packages(formats.__path__, "rmqctl.formats."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Struct) and id(value) not in described:
                missing.add(name)
    # Parts of other layouts, and a request of producers that is in no file.
    assert missing == {"HostV4", "HostV6", "BatchRequestItem"}


def test_offsets_and_widths_are_those_of_the_readers():
    rows = {name: (at, width) for at, width, name, _ in generator().layout_rows(message.Message)}
    assert rows["physical_offset"] == ("28", "8")
    assert rows["store_host"] == ("64 or 76", "8 or 20")
    assert rows["topic"] == ("end of `body` + 1 or 2", "variable")
    rows = {name: (at, width) for at, width, name, _ in generator().layout_rows(index_file.Entry)}
    for field in layout.fields(index_file.Entry):
        assert rows[field.name] == (str(field.offset), str(field.size))


@pytest.mark.parametrize("spec", REGISTRY, ids=lambda spec: spec.title)
def test_every_command_and_option_is_in_the_reference(reference, spec):
    assert f"### `rmqctl {spec.title}`" in reference
    for parameter in parameters(load(spec)):
        assert parameter.names[0] in reference


@pytest.mark.parametrize("spec", REGISTRY, ids=lambda spec: spec.title)
def test_usage_has_each_bracket_once(reference, spec):
    usage = next(line for line in reference.splitlines()
                 if line.startswith(f"rmqctl {spec.title} [OPTIONS]"))
    assert usage.count("[") == usage.count("]")
    assert "...." not in usage


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        path, _, anchor = target.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there.read_text()), target


def test_the_guides_are_short_listed_and_played():
    """A page that shows commands is played by test_transcripts.py: it has console blocks."""
    for page in [*DOCS.glob("howto/*.md"), *DOCS.glob("tutorial/*.md")]:
        text = page.read_text()
        fences = set(re.findall(r"^```(\w+)", text, re.MULTILINE))
        assert fences <= {"console", "sh", "json", "py", "text"}, page
        language = ".zh-CN.md" if page.name.endswith(".zh-CN.md") else ".md"
        is_index = page.name == f"README{language}"
        assert is_index or "console" in fences, page
        if page.parent.name == "howto":
            assert len(text.splitlines()) < 150, page
            index = (page.parent / f"README{language}").read_text()
            assert is_index or f"]({page.name})" in index, page
            assert f"howto/{page.name}\n" in (ROOT / "mkdocs.yml").read_text(), page


def test_a_chinese_guide_plays_what_the_english_one_plays():
    """The same commands, outputs and preparations in the same order, and a link to each other."""
    played = re.compile(r"^<!-- .*? -->$|^```.*?^```$", re.MULTILINE | re.DOTALL)
    pages = [page for name in ("howto", "tutorial") for page in DOCS.glob(f"{name}/*.zh-CN.md")]
    assert pages
    for page in pages:
        english = page.with_name(page.name.replace(".zh-CN", ""))
        assert played.findall(page.read_text()) == played.findall(english.read_text()), page
        assert f"English | [中文]({page.name})" in english.read_text(), page
        assert f"[English]({english.name}) | 中文" in page.read_text(), page


def anchors(text: str) -> set[str]:
    """The anchors a forge makes of the headings of a page."""
    return {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).strip().replace(" ", "-")
            for line in text.splitlines() if line.startswith("#")}


def test_every_exit_code_and_effect_is_in_the_reference():
    reference = (DOCS / "reference" / "README.md").read_text()
    for part in generator().conventions():
        assert part in reference, "correct the table by hand"
    for code in ExitCode:
        assert f"| {int(code)} | {code.meaning} |" in reference
    for effect in EFFECTS:
        assert f"| {effect} |" in reference


def commands_in(text: str):
    """Every ``rmqctl ...`` that stands in a code block or a code span of a page."""
    for block in re.findall(r"```[^\n]*\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            crontab = r"(?:[\d*/,-]+ +){5}\w+ +"
            match = re.match(rf"\s*(?:\$ |{crontab})?(?:[A-Z_]+=\S+ )*(?:\S*/)?rmqctl (.*)", line)
            if match:
                yield from match[1].split(" | rmqctl ")
    yield from re.findall(r"`rmqctl ([^`]+)`", text)


def unknown(line: str) -> str | None:
    """What in a command line does not exist: the command, or one of its options."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    if words[:1] == ["help"]:
        words = words[2 if words[1:2] == ["options"] else 1:]
    if not words or words[0].startswith("-"):
        return None
    specs_by_name = {spec.name: spec for spec in REGISTRY}
    spec = next((specs_by_name[name] for name in (tuple(words[:most]) for most in (3, 2, 1))
                 if name in specs_by_name), None)
    if spec is None:
        groups = {spec.name[:most] for spec in REGISTRY for most in range(1, len(spec.name))}
        named = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
        is_group = tuple(words[:named]) in groups
        return None if is_group or not words[0].islower() else words[0]
    options = {name for p in parameters(load(spec)) for name in p.names} | {"--help", "-h"}
    for word in words[len(spec.name) :]:
        if word in ("|", ">", "&&", ";", "||", "2>"):
            break
        if word.startswith("--") and word.partition("=")[0] not in options:
            return word
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_show_only_commands_that_exist(page):
    wrong = [(line, what) for line in commands_in(page.read_text()) if (what := unknown(line))]
    assert wrong == []


def test_the_guides_name_only_options_that_exist():
    options = {name for spec in REGISTRY for p in parameters(load(spec)) for name in p.names}
    wrong = [(page.name, name) for page in [*DOCS.glob("howto/*.md"), *DOCS.glob("tutorial/*.md")]
             for name in re.findall(r"`(--[a-z-]+)", page.read_text())
             if name not in {*options, "--help"}]
    assert wrong == []


PROGRAMS = [(page, *item) for page in PAGES for item in
            re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", page.read_text(), re.DOTALL)]


def test_every_program_of_the_page_about_python_is_run():
    page = DOCS / "reference" / "python.md"
    assert page.read_text().count("```python\n") == sum(program[0] == page
                                                        for program in PROGRAMS) > 4


@pytest.mark.parametrize(("page", "program", "expected_text"), PROGRAMS,
                         ids=[str(page.relative_to(ROOT)) for page, _, _ in PROGRAMS])
def test_python_examples_say_what_the_page_shows(page, program, expected_text, tmp_path,
                                                 monkeypatch,
                                                 capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    exec(compile(program, page.name, "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == expected_text


def test_every_python_example_is_run():
    assert len(PROGRAMS) == sum(page.read_text().count("```python\n") for page in PAGES) > 0


def test_every_dependency_is_explained():
    text = (DOCS / "explanation" / "dependencies.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [requirement for extra in project["optional-dependencies"].values()
              for requirement in extra]
    for requirement in [*project["dependencies"], *extras]:
        name = re.match(r"[A-Za-z0-9._-]+", requirement).group()
        if name == "rmqctl":  # an extra that takes in another one
            continue
        assert f"`{name}`" in text, f"{name} is not in docs/explanation/dependencies.md"


def test_every_lint_exception_has_its_reason():
    inside = False
    for line in (ROOT / "pyproject.toml").read_text().splitlines():
        if line.startswith("ignore = ["):
            inside = True
        elif line.startswith("]"):
            inside = False
        elif inside:
            assert "#" in line, line


def test_the_checks_can_fail():
    assert unknown("frobnicate store") == "frobnicate"
    assert unknown("commands --frobnicate") == "--frobnicate"
    assert unknown("commands -o json | jq .") is None
    assert unknown("--help") is None
    text = "x `rmqctl info S` y\n```console\n$ A=b rmqctl dump F | rmqctl append G\n```\n"
    assert list(commands_in(text)) == ["dump F", "append G", "info S"]
    assert list(commands_in("```text\n15 3 * * 1-6  mq  rmqctl info S\n```\n")) == ["info S"]
