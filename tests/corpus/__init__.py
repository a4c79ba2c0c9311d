"""Documents that tests share: configurations, topologies and pairs of them, valid and not.

- ``config/valid/*.toml`` parse; ``full.toml`` uses every key of the grammar.
- ``config/invalid/NAME.toml`` is refused with exactly the lines of ``NAME.faults``; topologies likewise.
- ``snapshots/CODE/`` holds a ``config.toml``, and maybe ``topology.toml`` and ``overlay.toml``, that are
  refused together with that code; ``snapshots/valid-*/`` are accepted.
"""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent


def read(name: str) -> bytes:
    """The bytes of one document, by its path below this directory."""
    return (ROOT / name).read_bytes()


def documents(kind: str, verdict: str) -> list[Path]:
    """All documents of a kind (``config`` or ``topology``) and verdict (``valid`` or ``invalid``), sorted."""
    return sorted((ROOT / kind / verdict).glob("*.toml"))


def expected_faults(document: Path) -> list[str]:
    """The faults of an invalid document, one rendered fault a line."""
    return document.with_suffix(".faults").read_text("utf-8").splitlines()


@dataclass(frozen=True)
class SnapshotCase:
    """A directory of ``snapshots``: the documents that are validated together."""

    name: str
    config: Path
    topology: Path | None
    overlay: Path | None

    def data(self) -> tuple[bytes, bytes | None, bytes | None]:
        return (
            self.config.read_bytes(),
            None if self.topology is None else self.topology.read_bytes(),
            None if self.overlay is None else self.overlay.read_bytes(),
        )


def snapshot_case(name: str) -> SnapshotCase:
    directory = ROOT / "snapshots" / name
    topology, overlay = directory / "topology.toml", directory / "overlay.toml"
    return SnapshotCase(
        name=name,
        config=directory / "config.toml",
        topology=topology if topology.exists() else None,
        overlay=overlay if overlay.exists() else None,
    )


def snapshot_cases(*, valid: bool) -> list[SnapshotCase]:
    names = sorted(entry.name for entry in (ROOT / "snapshots").iterdir() if entry.is_dir())
    return [snapshot_case(name) for name in names if name.startswith("valid-") == valid]
