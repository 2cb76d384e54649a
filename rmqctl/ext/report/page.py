"""The HTML page of a report: facts, sentences and charts in a template that escapes everything.

The template (``report.html``) has no script; its style sheet is ``report.css``. The content
security policy in its head forbids all other content and every connection.
"""

from __future__ import annotations

import base64
import hashlib
import platform
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import tzinfo
from importlib.resources import files
from typing import Any

from rmqctl import __version__
from rmqctl.checks.digests import of_all
from rmqctl.checks.explanations import Explanation, explanations
from rmqctl.checks.findings import ERROR, INFO, WARNING, Finding
from rmqctl.ext.report import words
from rmqctl.ext.report.drawing import NARROW, WIDE, Bars, bars, log_map, timeline
from rmqctl.ext.report.facts import Facts
from rmqctl.ext.report.masking import Mask
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.language import ENGLISH, Language, language
from rmqctl.output.texts import TextCatalog
from rmqctl.output.units import count_text, duration_text, size_text, time_text
from rmqctl.phrases import Phrase
from rmqctl.scan.frames import DAMAGED
from rmqctl.store.log.commit_log import CommitLog

MAX_ROWS = 200
"""Maximum number of rows in a table of topics or groups."""
MAX_QUEUES = 2000
_FIRST_ROWS = 25
_PER_KIND = 12
_ACTIONS = 30
_MISSING = 8
_OPEN_QUEUES, _PRINTED_QUEUES = 24, 100
_OPEN_FILES = 40
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_SEVERITIES = (ERROR, WARNING, INFO)


class MaskedText(str):
    """A text that is already masked, but not escaped."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Speech:
    """The language of the page, with a mask for every text that comes from the store."""

    language: Language
    mask: Mask

    def say(self, singular: str, many: str = "", /, **values: Any) -> MaskedText:
        """Return a sentence in the language of the page. The parameters are those of
        `rmqctl.phrases.Phrase`.
        """
        masked = {name: self.shown(value) for name, value in values.items()}
        english = many if many and values["count"] != 1 else singular
        template = self.language.catalog.get(many or singular, english)
        return MaskedText(template.format(**masked) if masked else template)

    def tell(self, text: str) -> MaskedText:
        """Translate and mask a sentence from another module, which may be a `Phrase`."""
        shown = self.language.say(text) if isinstance(text, Phrase) else self.language.caption(text)
        return MaskedText(self.mask.text(shown))

    def shown(self, value: Any) -> Any:
        """Return a value as the template shows it: None as an empty string, strings masked."""
        if value is None:
            return ""
        if isinstance(value, MaskedText) or hasattr(value, "__html__"):
            return value
        return self.mask.text(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class CategorySummary:
    """The findings of one category and severity: the first findings, and their total number."""

    category: str
    severity: str
    count: int
    explanation: Explanation | None
    rows: list[Finding] = field(default_factory=list)

    @property
    def columns(self) -> dict[str, bool]:
        """For each optional column, whether any finding has a value in it."""
        return {name: any(getattr(row, name) is not None for row in self.rows)
                for name in ("offset", "length", "topic", "queue_id", "queue_offset")}


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Inputs of the page.

    * ``created_at``: time of the report (ms)
    * ``commands``: for each part of the page, a shell command that prints the same data
    * ``log``: the log, None if its layout is not supported
    """

    language: Language
    tz: tzinfo
    mask: Mask
    created_at: int
    commands: Mapping[str, str]
    next: list[tuple[str, str]]
    log: CommitLog | None = None


def page(facts: Facts, request: PageRequest) -> str:
    """Return the HTML of the report."""
    # Compute what the template shows besides the facts.
    speech = Speech(request.language, request.mask)
    diagnosis = facts.diagnosis
    css = _read("report.css")
    drawn = None if facts.profile is None else bars(facts.profile.times, facts.lost_times)
    sums = _checksums(facts, request.mask)
    head = words.headline(diagnosis, speech.say)
    template = _environment(speech).from_string(_read("report.html"))
    # Render the template, which escapes all texts.
    html: str = template.render(
        css=_safe(css), style_hash=_style_hash(css), lang=request.language.name,
        version=__version__, python=platform.python_version(), created_at=request.created_at,
        facts=facts, diagnosis=diagnosis, start=diagnosis.start,
        coverage=diagnosis.findings.coverage,
        head=head,
        story=words.story(facts, speech.say, lambda millis: moment(millis, request.tz)),
        commands=request.commands, next=request.next,
        drawn=drawn, chart=_timeline(drawn, facts, request, speech),
        map=_map(facts, request, speech), map_scale=_scale(facts),
        kinds=_kinds(facts, request.language.name),
        sums=sums, fingerprint=of_all(sums),
        unread=[file for file in facts.files or () if file.sha256 is None],
        changed=[file for file in facts.files or () if file.changed],
        first_rows=_FIRST_ROWS, most=MAX_ROWS, most_queues=MAX_QUEUES, most_actions=_ACTIONS,
        most_missing=_MISSING,
        open_queues=_OPEN_QUEUES, printed_queues=_PRINTED_QUEUES, open_files=_OPEN_FILES,
        masked=sorted(request.mask.kinds), mask=request.mask,
        moment=lambda millis: "" if millis is None else moment(millis, request.tz),
        calm=words.GOOD if head.tone == words.GOOD else "",
        detail=lambda row: MaskedText(request.mask.detail(
            request.language.text(row.detail), row.category)),
        zone=str(request.tz), relative=lambda path: _relative(path, facts.root))
    return html


def of_report(name: str) -> Language:
    """Return a language with the sentences of the report (``zh.toml``) added."""
    base = language(name)
    if name == ENGLISH:
        return base
    return Language(name, TextCatalog({**base.catalog, **tomllib.loads(_read(f"{name}.toml"))}))


def moment(millis: int, tz: tzinfo) -> str:
    """Return a time as ``2024-06-23 19:12:52``, or the number itself if the calendar cannot
    represent it.
    """
    stamp = time_text(millis, tz)
    return stamp[:19].replace("T", " ") if _TIME.match(stamp) else stamp


def span_text(millis: int) -> str:
    """Return a time span as ``3 h``, ``5 min`` or ``1 s``."""
    return re.sub(r"(?<=\d)\.0(?= s)| 0 (h|min|s)$", "", duration_text(millis))


# -- parts -----------------------------------------------------------------------------------------


def _timeline(drawn: Bars | None, facts: Facts, request: PageRequest, speech: Speech) -> Any:
    if drawn is None:
        return ""
    return _safe("".join(timeline(drawn, facts.marks, facts.lost, request.tz, speech.say, shape)
                         for shape in (WIDE, NARROW)))


def _map(facts: Facts, request: PageRequest, speech: Speech) -> Any:
    profile = facts.profile
    if profile is None or not (profile.cells.any() or facts.missing):
        return ""
    borders = [] if request.log is None else [file.base for file in request.log.files]
    borders += [file.offset for file in facts.missing]
    reach = max((file.offset + file.size for file in facts.missing), default=0)
    return _safe("".join(log_map(profile, reach, borders, speech.say, shape)
                         for shape in (WIDE, NARROW)))


def _scale(facts: Facts) -> str:
    return "" if facts.profile is None else size_text(facts.profile.cell)


def _kinds(facts: Facts, lang: str) -> list[CategorySummary]:
    """Return the findings by category and severity: errors first, infos last."""
    meanings = explanations(lang)
    verdict = facts.diagnosis.findings
    kinds = {(category, severity): CategorySummary(category, severity, count,
                                                   meanings.get(category))
             for (category, severity), count in verdict.counts.items() if severity in _SEVERITIES}
    for finding in verdict.findings:
        rows = kinds[finding.category, finding.severity].rows
        if len(rows) < _PER_KIND:
            rows.append(finding)
    return sorted(kinds.values(), key=lambda kind: (
        _SEVERITIES.index(kind.severity), -kind.count, kind.category))


def _checksums(facts: Facts, mask: Mask) -> list[MaskedText]:
    """Return lines for `sha256sum --check`, with masked names."""
    return [MaskedText(f"{line[:66]}{mask.text(line[66:])}" if not line.startswith("\\") else
                 f"{line[:67]}{mask.text(line[67:])}")
            for line in (file.line() for file in facts.files or ()) if line]


def _relative(path: str | None, root: str) -> str:
    """Return a path in the store relative to ``root``; any other path is unchanged."""
    if path is None:
        return ""
    return path[len(root):].lstrip("/") if path.startswith(root.rstrip("/") + "/") else path


# -- the template ----------------------------------------------------------------------------------


def _environment(speech: Speech) -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True,
                              undefined=StrictUndefined, finalize=speech.shown)
    environment.globals |= {"say": speech.say, "tell": speech.tell, "DAMAGED": DAMAGED}
    environment.filters |= {
        "count": _number, "size": size_text, "share": _share, "bar": _bar, "largest": _largest,
        "span": span_text, "masked": MaskedText, "prose": _prose}
    return environment


def _number(value: int | None) -> str:
    return "" if value is None else count_text(value)


def _share(part: float, total: float) -> str:
    return f"{part / total:.1%}" if total else ""


def _largest(rows: Iterable[Any], name: str) -> int:
    return max((getattr(row, name) for row in rows), default=0)


def _bar(part: float, total: float, kind: str = "messages") -> Any:
    """Return a bar for a table cell. Its width is the share of ``part`` in ``total``."""
    width = 100 * max(0, part) / total if total > 0 else 0
    return _safe(f'<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" '
                 f'aria-hidden="true"><rect class="f-{kind}" width="{width:.2f}" height="6"/>'
                 '</svg>')


def _prose(text: str) -> Any:
    """Return a sentence as markup, with code elements for text between backticks."""
    from markupsafe import Markup, escape

    parts = [escape(part) for part in text.split("`")]
    if len(parts) % 2 == 0:  # an unpaired backtick
        return escape(text)
    return Markup("").join(  # all parts are escaped
        Markup("<code>{}</code>").format(part) if number % 2 else part
        for number, part in enumerate(parts))


def _safe(html: str) -> Any:
    from markupsafe import Markup

    return Markup(html)  # noqa: S704 - our own files, and charts of numbers


def _style_hash(css: str) -> str:
    return base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()


def _read(name: str) -> str:
    return files("rmqctl.ext.report").joinpath(name).read_text(encoding="utf-8")
