"""The links of the documentation: each leads somewhere, and none leaves this machine.

The site must be readable without a network, so no page may load or name anything elsewhere. URLs are allowed
where they are examples: loopback addresses, and the names that RFC 2606 reserves.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_LINK: Final = re.compile(r"!?\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^()\s]+)\)")
_URL: Final = re.compile(r"https?://[^\s\"'`<>()|\\]+")
_FENCE: Final = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"`[^`\n]+`")
_EXAMPLE: Final = re.compile(
    r"(?:127\.0\.0\.1|localhost|\[::1\]|(?:[a-z0-9-]+\.)*example(?:\.(?:com|org|net))?)(?::\d+)?",
    re.IGNORECASE,
)


def markdown_files(root: Path) -> list[Path]:
    """Every Markdown file that people are given."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def markdown_faults(root: Path) -> list[str]:
    """Links to files or headings that are not there, and URLs that lead away; as ``file: what``."""
    return [
        f"{path.relative_to(root).as_posix()}: {fault}"
        for path in markdown_files(root)
        for fault in _faults_of(path)
    ]


def is_example(url: str) -> bool:
    """Whether a URL leads nowhere else: a loopback address, or a name that is reserved for examples."""
    return _EXAMPLE.fullmatch(urlsplit(url.rstrip(".,;:")).netloc) is not None


def _faults_of(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    for url in _URL.findall(text):
        if not is_example(url):
            yield f"leads away: {url}"
    for target in _LINK.findall(_CODE.sub("", _FENCE.sub("", text))):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / unquote(name) if name else path
        if not file.is_file():
            yield f"no such file: {target}"
        elif anchor and file.suffix == ".md" and anchor not in headings(file):
            yield f"no such heading: {target}"


def headings(path: Path) -> set[str]:
    """The anchors of a Markdown file's headings, as the site makes them."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for title in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)).strip().lower()
        base = anchor = re.sub(r"[-\s]+", "-", plain)
        number = 0
        while anchor in found:
            number += 1
            anchor = f"{base}_{number}"
        found.add(anchor)
    return found


class _References(HTMLParser):
    """What one HTML page links to or loads, and the anchors that it offers."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.targets.append(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


def site_faults(site: Path) -> list[str]:
    """Links of the built site that lead to no file or anchor of it, or away from it."""
    pages: dict[Path, _References] = {}
    for path in sorted(site.rglob("*.html")):
        pages[path.resolve()] = references = _References()
        references.feed(path.read_text(encoding="utf-8"))
    faults = []
    for path, references in pages.items():
        for target in references.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if parts.scheme != "data" and not is_example(target):
                    faults.append(f"{path.name}: leads away: {target}")
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if path.name == "404.html" and target.startswith("/"):
                continue  # It is served for any path, so its own links are absolute.
            if not file.exists():
                faults.append(f"{path.name}: no such file: {target}")
            elif parts.fragment and file in pages and parts.fragment not in pages[file].anchors:
                faults.append(f"{path.name}: no such anchor: {target}")
    return faults if pages else [f"no page was built in {site.name}"]
