"""Prepare matplotlib's drawings for the page: replace colours with classes, and remove styles.

A page with a content security policy ignores ``style`` attributes, and a page with a light and a
dark theme cannot have fixed colours. So each colour of `PALETTE` becomes a class, to which the
page's style sheet gives a colour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

PALETTE = {"messages": "#010101", "bytes": "#020202", "damaged": "#030303", "blank": "#040404",
           "zero": "#050505", "line": "#060606", "text": "#070707", "missing": "#080808",
           "lost": "#090909"}
"""The colours for drawing, by meaning."""
_MEANING = {colour: name for name, colour in PALETTE.items()}
_DECIMALS = re.compile(r"(\.\d\d)\d+")
_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_KEPT = frozenset({"fill", "fill-opacity", "fill-rule", "opacity", "stroke", "stroke-linecap",
                   "stroke-linejoin", "stroke-opacity", "stroke-width", "text-anchor"})
"""CSS properties that are kept, as attributes of their element."""


def embedded(drawn: str, titles: Mapping[str, str], name: str, shape: str) -> str:
    """Return the ``<svg>`` element for a page.

    * ``titles``: tooltips of elements, by ``gid``
    * ``name``: the prefix of all ids, which must be unique in a page
    * ``shape``: an additional CSS class
    """
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(drawn)  # noqa: S314 - drawn here, of numbers
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        if "d" in element.attrib:  # hundredths of a point are fine enough, and half the size
            element.set("d", _DECIMALS.sub(r"\1", " ".join(element.attrib["d"].split())))
        _restyle(element)
        _rename(element, titles, name)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("class", f"chart {shape}")
    root.set("role", "img")
    return ElementTree.tostring(root, encoding="unicode")


def _restyle(element: ElementTree.Element) -> None:
    style = element.attrib.pop("style", "")
    classes = []
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name in ("fill", "stroke") and value in _MEANING:
            classes.append(f"{name[0]}-{_MEANING[value]}")
        elif name in _KEPT:
            element.set(name, value)
    if element.tag == f"{{{_SVG}}}text" and not any(name.startswith("f-") for name in classes):
        classes.append("f-text")
    if classes:
        element.set("class", " ".join(classes))


def _rename(element: ElementTree.Element, titles: Mapping[str, str], name: str) -> None:
    own = element.attrib.pop("id", None)
    if own is not None and own in titles:
        title = ElementTree.Element(f"{{{_SVG}}}title")
        title.text = titles[own]
        element.insert(0, title)
    elif own is not None and element.tag in (f"{{{_SVG}}}path", f"{{{_SVG}}}clipPath"):
        element.set("id", f"{name}-{own}")  # a marker or a clip, referred to
    link = element.attrib.pop(_HREF, None)
    if link is not None:
        element.set("href", f"#{name}-{link.removeprefix('#')}")
    clip = element.attrib.get("clip-path")
    if clip is not None:
        element.set("clip-path", clip.replace("url(#", f"url(#{name}-"))
