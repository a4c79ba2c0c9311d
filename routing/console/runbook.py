"""What to do at night, on a page of its own: the part of the documentation that an alert leads to.

``runbook.txt`` is that part of ``docs/prometheus.md``, word for word; a test holds the two together. Of
Markdown it uses headings, paragraphs, code and emphasis.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from routing.console.pages import VIEW_FLEET, crumb, page, render

SOURCE: Final = Path(__file__).parent / "runbook.txt"
_PARTS: Final = re.compile(r"`([^`]+)`|\*([^*]+)\*")


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a paragraph."""

    kind: Literal["plain", "code", "strong"]
    text: str


Paragraph = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """One alert and what to do about it. Alerts link to ``anchor``."""

    name: str
    paragraphs: tuple[Paragraph, ...]

    @property
    def anchor(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Runbook:
    """The whole of it: its heading, what goes before the alerts, the alerts."""

    title: str
    lead: tuple[Paragraph, ...]
    alerts: tuple[Advice, ...]


def parse(text: str) -> Runbook:
    """The runbook that ``text`` holds, one ``##`` heading and a ``###`` heading for each alert."""
    head, *sections = text.split("\n### ")
    title, _, lead = head.partition("\n")
    alerts = []
    for section in sections:
        name, _, body = section.partition("\n")
        alerts.append(Advice(name.strip(), tuple(_paragraphs(body))))
    return Runbook(title.removeprefix("## ").strip(), tuple(_paragraphs(lead)), tuple(alerts))


@cache
def runbook() -> Runbook:
    """The runbook of this version."""
    return parse(SOURCE.read_text(encoding="utf-8"))


@page(VIEW_FLEET)
def show(request: HttpRequest) -> HttpResponseBase:
    """The runbook as a page; every alert can be linked to."""
    found = runbook()
    trail = [crumb("Fleet", "console:fleet")]
    return render(request, "console/runbook.html", found.title, {"runbook": found}, trail=trail)


def _paragraphs(text: str) -> Iterator[Paragraph]:
    for block in text.split("\n\n"):
        words = " ".join(block.split())
        if words:
            yield tuple(_parts(words))


def _parts(text: str) -> Iterator[Part]:
    end = 0
    for match in _PARTS.finditer(text):
        if match.start() > end:
            yield Part("plain", text[end : match.start()])
        yield Part("code", match[1]) if match[1] is not None else Part("strong", match[2])
        end = match.end()
    if end < len(text):
        yield Part("plain", text[end:])
