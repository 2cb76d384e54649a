"""What a public project has: forms and workflows that fit the program, and pages."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.language import doc_pages
from tests.test_docs import unknown

ROOT = Path(__file__).parents[1]
HOME = "https://github.com/rmqctl/rmqctl"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
def in_docs(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SITE = in_docs("site_hooks")


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, which names a Python function, too."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, tag, node: tag)


def jobs(path: Path) -> dict:
    return yaml.safe_load(path.read_text())["jobs"]


def steps(path: Path) -> list[dict]:
    return [step for job in jobs(path).values() for step in job["steps"]]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_info_and_names_only_commands_that_exist(path):
    form = yaml.safe_load(path.read_text())
    asked = [field.get("attributes", {}) for field in form["body"]]
    assert any(field.get("label") == "`rmqctl info STORE -o json`" for field in asked)
    named = [line for field in asked for line in re.findall(r"`rmqctl ([^`]+)`", str(field))]
    assert [line for line in named if unknown(line)] == []
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_is_there(path):
    makefile = (ROOT / "Makefile").read_text()
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    for name, job in jobs(path).items():
        needs = job.get("needs", [])
        assert ({needs} if isinstance(needs, str) else set(needs)) <= jobs(path).keys(), name
        assert job["timeout-minutes"] > 0, name
    for step in steps(path):
        assert ("run" in step) != ("uses" in step)
        for line in step.get("run", "").splitlines():
            words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "X", line), comments=True)
            if words[:1] == ["make"]:
                for target in (word for word in words[1:] if "=" not in word):
                    assert re.search(rf"^(?:\S+ )*{target}(?: \S+)*:", makefile, re.MULTILINE), line
                for name in (word.partition("=")[0] for word in words[1:] if "=" in word):
                    assert re.search(rf"^{name} \?=", makefile, re.MULTILINE), line


def test_each_python_that_is_promised_is_tested_and_built():
    promised = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"]
                if re.search(r":: 3\.\d+$", line)]
    tested = jobs(ROOT / ".github/workflows/ci.yml")["test"]["strategy"]["matrix"]["python"]
    assert tested == promised
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]["build"]
    assert built == "cp31{" + ",".join(part.removeprefix("3.1") for part in promised) + "}-*"


def test_a_release_is_published_without_a_password_after_all_wheels():
    release = jobs(ROOT / ".github/workflows/release.yml")
    assert release["publish"]["permissions"] == {"id-token": "write"}
    assert set(release["publish"]["needs"]) == release.keys() - {"publish", "release"}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


def test_all_files_name_one_home():
    assert PROJECT["urls"]["Source"] == HOME
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)  # adds nothing unsafe
    assert (site["repo_url"], site["site_url"]) == (HOME, PROJECT["urls"]["Documentation"])
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["repository-code"], citation["license"]) == (HOME, PROJECT["license"])
    assert site["site_description"] == PROJECT["description"]
    assert citation["title"].lower() == f"rmqctl: {PROJECT['description']}".lower()


def test_every_page_is_in_the_navigation_of_the_site():
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    named = re.findall(r"[\w./-]+\.md", str(site["nav"]))
    pages = {str(page.relative_to(ROOT / "docs")) for page in doc_pages()}
    assert sorted(named) == sorted(pages | set(SITE.OUTSIDE.values()) | set(SITE.GENERATED))


def test_generated_pages_follow_their_index_in_the_navigation(tmp_path, monkeypatch):
    monkeypatch.setattr(SITE, "DOCS", tmp_path)
    nav = ["a.md", {"Reference": ["b.md", {"Formats": ["reference/formats/README.md"]}]}]
    with pytest.raises(ValueError, match="run docs/generate_reference"):
        SITE.extended(nav)
    folder = tmp_path / "reference" / "formats"
    folder.mkdir(parents=True)
    for name in ("README", "lock", "abort"):
        (folder / f"{name}.md").touch()
    shown = [f"reference/formats/{name}.md" for name in ("README", "abort", "lock")]
    assert SITE.extended(nav) == ["a.md", {"Reference": ["b.md", {"Formats": shown}]}]


def test_links_of_a_page_lead_to_the_site_or_the_repository():
    here = ROOT / "docs" / "explanation" / "verify.md"
    for link, led in [
        ("[a](reading.md#times)", "[a](reading.md#times)"),
        ("[a](../../README.md)", "[a](../index.md)"),
        ("[a](../../LICENSE)", f"[a]({HOME}/blob/main/LICENSE)"),
        ("![a](../../docs/report.png)", "![a](../report.png)"),
        ("![a](../../examples/python/delays.png)",
         f"![a]({HOME}/raw/main/examples/python/delays.png)"),
        ("[a](../../tests)", f"[a]({HOME}/tree/main/tests)"),
        ("[a](#b) [c](https://d.e/f.md)", "[a](#b) [c](https://d.e/f.md)"),
        ("`[a](none.md)`\n```\n[a](none.md)\n```", "`[a](none.md)`\n```\n[a](none.md)\n```"),
    ]:
        assert SITE.with_links(link, here, HOME) == led
    for missing in ("none.md", "../../../elsewhere.md"):
        with pytest.raises(ValueError, match="does not exist"):
            SITE.with_links(f"[a]({missing})", here, HOME)
    assert SITE.with_links("[a](docs/explanation/verify.md)", ROOT / "README.md", HOME) == (
        "[a](explanation/verify.md)")
    below = ROOT / "docs" / "howto" / "README.md"
    for link, led in [
        ("[a](../explanation/verify.md#findings)", "[a](../explanation/verify.md#findings)"),
        ("[a](find-a-message.md)", "[a](find-a-message.md)"),
        ("[a](../../README.md)", "[a](../index.md)"),
        ("[a](../../LICENSE)", f"[a]({HOME}/blob/main/LICENSE)"),
    ]:
        assert SITE.with_links(link, below, HOME) == led


def test_the_readme_is_short_and_begins_with_the_session():
    text = (ROOT / "README.md").read_bytes()
    assert len(text) <= 9 * 1024
    assert b"](docs/rmqctl.svg)" in text[:400]


@pytest.mark.long
def test_the_session_at_the_top_of_the_readme_is_what_comes(tmp_path):
    drawing = in_docs("generate_picture")
    shown = drawing.TARGET.read_text()
    assert drawing.text_of(drawing.picture(drawing.session(tmp_path))) == drawing.text_of(shown), (
        "run `make docs`")
    for line in (*drawing.SESSION, "store: 1 finding", "store: no damage found"):
        assert line in drawing.text_of(shown)
    assert re.findall(r"(?:url|href|src)[(=]\W?https?:", shown) == []
