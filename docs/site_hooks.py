"""Changes to what mkdocs reads (mkdocs.yml): README.md is the first page, and a link to a file
outside docs/ leads to the repository. The generated pages of the reference follow their index in
the navigation. A link to a missing file ends the build.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Pages of the site that lie beside docs/, and what they are called in it.
OUTSIDE = {"README.md": "index.md", "README.zh-CN.md": "README.zh-CN.md"}
#: Index pages of the folders that docs/generate_reference.py writes, as mkdocs.yml names them.
GENERATED = tuple(f"reference/{name}/README.md" for name in ("commands", "findings", "formats"))
_LINK = re.compile(r"(!?)(\[[^\]]*\])\(([^)\s#]*)(#[^)\s]*)?\)|(```.*?```|`[^`]*`)", re.DOTALL)


def on_config(config: Any) -> Any:
    """Put the generated pages into the navigation."""
    config["nav"] = extended(config["nav"])
    return config


def extended(nav: list[Any]) -> list[Any]:
    """Return the navigation with every generated page after its index. ValueError: no pages."""
    result: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            result.append({title: extended(inner) if isinstance(inner, list) else inner
                         for title, inner in entry.items()})
            continue
        result.append(entry)
        if entry in GENERATED:
            index = DOCS / entry
            if not index.exists():
                raise ValueError(f"docs/{entry} does not exist; run docs/generate_reference.py")
            result += sorted(f"{Path(entry).parent}/{page.name}"
                             for page in index.parent.glob("*.md") if page != index)
    return result


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie beside docs/."""
    from mkdocs.structure.files import File

    for source, page in OUTSIDE.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Lead each link of a page to where it is on the site."""
    sources = {name: source for source, name in OUTSIDE.items()}
    path = page.file.src_uri
    return with_links(markdown, ROOT / sources.get(path, f"docs/{path}"), config["repo_url"])


def with_links(markdown: str, source: Path, repository: str) -> str:
    """The text of the page ``source`` with its links as the site has them. ValueError: one that
    leads to no file.
    """
    # Pages that are outside docs/ are at the top of the site.
    folder = source.parent if source.is_relative_to(DOCS) else DOCS

    def led(link: re.Match[str]) -> str:
        image, text, target, anchor, code = link.groups("")
        if code or not target or target.startswith(("http:", "https:", "mailto:")):
            return link[0]
        there = (source.parent / target).resolve()
        if not there.exists() or not there.is_relative_to(ROOT):
            raise ValueError(f"{source.relative_to(ROOT)} links to {target}, which does not exist")
        inside = str(there.relative_to(ROOT))
        if inside in OUTSIDE:
            return f"{image}{text}({os.path.relpath(DOCS / OUTSIDE[inside], folder)}{anchor})"
        if there.is_relative_to(DOCS) and there.is_file() and there.suffix != ".py":
            return f"{image}{text}({os.path.relpath(there, folder)}{anchor})"
        kind = "raw" if image else "tree" if there.is_dir() else "blob"
        return f"{image}{text}({repository}/{kind}/main/{inside}{anchor})"

    return _LINK.sub(led, markdown)
