"""python -m scripts.handbook --write | --check | --links [SITE]

``--write`` makes every table and picture in docs/ anew, ``--check`` fails when one is not current,
``--links`` checks the links of the Markdown files and, when it is given, of the site that was built.
"""

import os
import sys
from pathlib import Path

import django

from scripts.handbook import links, pictures, sections

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--links"] and len(arguments) <= 2:
        faults = links.markdown_faults(ROOT)
        if len(arguments) == 2:
            faults += links.site_faults(Path(arguments[1]))
        return tell(faults)
    if arguments not in (["--write"], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "anvil_site.settings")
    django.setup()
    wanted = sections.pages(ROOT / "docs") | pictures.files(ROOT / "docs" / "pictures")
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    if arguments == ["--check"]:
        names = [path.relative_to(ROOT).as_posix() for path in stale]
        return tell([f"{name} is out of date: python -m scripts.handbook --write" for name in names])
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
    return 0


def tell(faults: list[str]) -> int:
    """Print the faults; the exit code they make."""
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
