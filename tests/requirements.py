"""docs/requirements.md: which test proves which requirement, from the tests' own marks.

    python -m tests.requirements --write | --check

Marks are read from the source (``@pytest.mark.requirement("C-R004", ...)`` on functions and classes, and
``pytestmark`` of modules), so nothing has to be imported or collected.
"""

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "docs" / "requirements.toml"
PAGE = ROOT / "docs" / "requirements.md"
FAMILIES = {
    "Q": "Qualified same-host replica sets",
    "C": "Capacity-aware scheduling",
    "F": "Readiness fencing",
}


def catalogue() -> dict[str, str]:
    """Every id with its short text, in the order of the source."""
    document = tomllib.loads(SOURCE.read_text())
    return {f"{family}-{key}": text for family in FAMILIES for key, text in document[family].items()}


def notes(table: str) -> dict[str, str]:
    """The ``open`` or ``reason`` table: id to sentence."""
    found: dict[str, str] = tomllib.loads(SOURCE.read_text()).get(table, {})
    return found


def marked_tests() -> dict[str, list[str]]:
    """For each id that a mark names: the tests, as ``path::name``, sorted."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        name = path.relative_to(ROOT).as_posix()
        module_ids = _ids_of_assignment(tree)
        for node, title, inherited in _tests(tree):
            for requirement in {*module_ids, *inherited, *_ids_of_decorators(node)}:
                found[requirement].add(f"{name}::{title}")
    return {requirement: sorted(tests) for requirement, tests in found.items()}


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _tests(tree: ast.Module) -> Iterator[tuple[Definition, str, set[str]]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node, node.name, set()
        elif isinstance(node, ast.ClassDef):
            ids = _ids_of_decorators(node)
            members = [
                each
                for each in node.body
                if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
            ]
            for member in members:
                yield member, f"{node.name}::{member.name}", ids
            if not members and ids:
                yield node, node.name, set()
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            # A state machine's ``TestCase``: the marks stand on the class it is taken from.
            continue


def _ids_of_decorators(node: Definition) -> set[str]:
    """Marks on the definition itself, and on single parameter sets inside its ``parametrize``."""
    return {
        each for decorator in node.decorator_list for inner in ast.walk(decorator) for each in _ids(inner)
    }


def _ids_of_assignment(tree: ast.Module) -> set[str]:
    return {
        each
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)
        for mark in ast.walk(node.value)
        for each in _ids(mark)
    }


def _ids(node: ast.AST) -> Iterator[str]:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "requirement"
    ):
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def render() -> str:
    """The page."""
    tests, still_open, reasons = marked_tests(), notes("open"), notes("reason")
    lines = [
        "# Requirements and their tests",
        "",
        "Made by `python -m tests.requirements --write` from `docs/requirements.toml` and the tests' marks;",
        "a test holds it to both. `scripts/test -k NAME` runs one of them.",
        "",
    ]
    for family, title in FAMILIES.items():
        lines += [f"## {title}", ""]
        for requirement, text in catalogue().items():
            if not requirement.startswith(f"{family}-"):
                continue
            lines.append(f"- **{requirement}** {text}")
            proofs = tests.get(requirement, [])
            if proofs:
                lines.append(
                    f"    - {len(proofs)} {'test' if len(proofs) == 1 else 'tests'}: {_files(proofs)}"
                )
            if requirement in still_open:
                lines.append(f"    - open: {still_open[requirement]}")
            if requirement in reasons:
                lines.append(f"    - no test: {reasons[requirement]}")
        lines.append("")
    return "\n".join(lines)


def _files(proofs: list[str]) -> str:
    """The first test of each file that holds some, which is enough to find the others."""
    first: dict[str, str] = {}
    for proof in proofs:
        path, _, name = proof.partition("::")
        first.setdefault(path, name)
    return ", ".join(f"`{path}::{name}`" for path, name in list(first.items())[:6])


def main(arguments: list[str]) -> int:
    page = render()
    if arguments == ["--write"]:
        PAGE.write_text(page)
        return 0
    if arguments == ["--check"]:
        return 0 if PAGE.exists() and PAGE.read_text() == page else 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
