"""The tables of the documentation, made from the code and put between a page's own words.

A page says where: everything between ``<!-- made: NAME -->`` and ``<!-- end -->`` is this module's.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from anvil_site.cli.manifest import manifest
from routing import activation_plan, config, refusals, snapshot, topology
from routing.documents import Invalid, Rule
from scripts.handbook import words

_PLACE: Final = re.compile(r"(<!-- made: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_KINDS: Final[Mapping[str, type]] = {
    "server": config.ServerSettings,
    "router": config.RouterSettings,
    "tier": config.Tier,
    "replica_identity": config.ReplicaIdentity,
    "replica": config.ReplicaMember,
    "purpose_model": config.PurposeModel,
    "audio_route": config.AudioRoute,
}
_REACH: Final = {
    "offline": "Works on files alone.",
    "router": "Asks the router at `ANVIL_URL`.",
    "router-or-offline": "Asks the router at `ANVIL_URL`; where none runs here, changes the data directory.",
    "process": "Becomes another process.",
}


def pages(docs: Path) -> dict[Path, str]:
    """Every page with a made section, as it should be. Raises KeyError for an unknown section."""
    found: dict[Path, str] = {}
    for path in sorted(docs.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if _PLACE.search(text):
            found[path] = _PLACE.sub(
                lambda match: f"{match[1]}\n{SECTIONS[match[2]]().rstrip()}\n\n{match[3]}", text
            )
    return found


def rule_text(rule: Rule) -> str:
    """The text of the fault that a value breaking ``rule`` makes, without the value."""
    try:
        rule("")
    except Invalid as error:
        return error.problems[0][1].removesuffix(', not ""')
    raise ValueError("the rule takes an empty string")


def _item_rule(rule: Rule) -> str | None:
    """The rule of an array's entries, where ``rule`` is one of an array."""
    try:
        rule([""])
    except Invalid as error:
        path, message = error.problems[0]
        return message.removesuffix(', not ""') if path == (0,) else None
    return None


def _rule_cell(rule: Rule) -> str:
    item = _item_rule(rule)
    return rule_text(rule) + (f"; each {item}" if item else "")


def _required(faults: tuple[config.Fault, ...]) -> set[str]:
    return {fault.path for fault in faults if fault.message == "is required"}


def _default(kind: type, key: str) -> str:
    value = inspect.signature(kind).parameters[key].default
    if isinstance(value, tuple):
        return "`[]`"
    if value == "" or not isinstance(value, bool | int | float | str):
        return "-"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def _key_table(rules: Mapping[str, Rule], sentences: Mapping[str, str], default: Callable[[str], str]) -> str:
    if rules.keys() != sentences.keys():
        raise KeyError(f"no words for, or no key of: {sorted(rules.keys() ^ sentences.keys())}")
    lines = ["| Key | Default | Rule, as an error tells it | What it does |", "|---|---|---|---|"]
    for key, rule in rules.items():
        lines.append(f"| `{key}` | {default(key)} | {_cell(_rule_cell(rule))} | {_cell(sentences[key])} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_ ", "\\_ ")


def _config_table(name: str) -> str:
    if name == "model_route":
        return _key_table(config.FIELD_RULES[name], words.CONFIG[name], lambda key: "-")
    required = _required(config.table_faults(name, {}))

    def default(key: str) -> str:
        return "required" if key in required else _default(_KINDS[name], key)

    return _key_table(config.FIELD_RULES[name], words.CONFIG[name], default)


def _params() -> str:
    tables: Mapping[str, Any] = inspect.getclosurevars(config.FIELD_RULES["tier"]["params"]).nonlocals[
        "rules"
    ]
    parts = []
    for name, table in tables.items():
        rules = dict(_flat(inspect.getclosurevars(table).nonlocals["rules"]))
        parts += [f"`params.{name}`:", _key_table(rules, words.PARAMS[name], lambda key: "-")]
    return "\n\n".join(parts)


def _flat(rules: Mapping[str, Rule], before: str = "") -> Iterator[tuple[str, Rule]]:
    """The rules of a closed table, those of the tables inside it under dotted keys."""
    for key, rule in rules.items():
        inside = inspect.getclosurevars(rule).nonlocals.get("rules")
        if isinstance(inside, Mapping):
            yield from _flat(inside, f"{before}{key}.")
        else:
            yield before + key, rule


def _topology_table(name: str) -> str:
    rules = topology.FIELD_RULES[name]
    required = {"schema_version", "id"} if name == "topology" else _required(topology.table_faults(name, {}))
    return _key_table(rules, words.TOPOLOGY[name], lambda key: "required" if key in required else "-")


def _code_table(texts: Iterable[tuple[str, str]]) -> str:
    lines = ["| Code | What it says |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{code}` | {text} |" for code, text in texts)])


def _activation() -> str:
    def keys(names: tuple[str, ...]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    return "\n".join(
        [
            "| Change | Needs |",
            "|---|---|",
            "| aliases, `[server]`, `[router]`, purpose models, audio routes | nothing |",
            f"| of a tier: {keys(activation_plan.TIER_FREE_KEYS)} | nothing |",
            f"| of a member: {keys(activation_plan.MEMBER_FREE_KEYS)} | nothing |",
            "| a tier or a member added | nothing; it serves once its own first probe has passed |",
            f"| a member removed, or its {keys(activation_plan.MEMBER_DRAIN_KEYS)} | that member at rest |",
            "| a tier removed, its shape (direct or replica), a direct tier's `base_url`, or its "
            f"{keys(activation_plan.TIER_DRAIN_KEYS)} | that tier at rest |",
        ]
    )


def _environment() -> str:
    lines = ["| Variable | Default | What it is |", "|---|---|---|"]
    return "\n".join(
        [
            *lines,
            *(f"| `{name}` | {default} | {text} |" for name, (default, text) in words.ENVIRONMENT.items()),
        ]
    )


def _commands() -> str:
    listed: Any = manifest()["commands"]
    return "\n\n".join(part for command in listed for part in _command(command))


def _command(command: Mapping[str, Any]) -> Iterator[str]:
    yield f"## anvil {command['command']}"
    previews = " Previews, unless `--confirm` is given." if command["mutates"] else ""
    needs = "" if command["needs"] is None else f" The key needs the scope {command['needs']}."
    yield f"{command['summary']} {_REACH[command['reach']]}{needs}{previews}"
    options = [option for option in command["options"] if option["name"] != "--json"]
    if options:
        lines = ["| Option | Value | What it is |", "|---|---|---|"]
        for option in options:
            value = "flag" if option["value"] is None else f"{option['value']}: {option['rule']}"
            text = option["help"] + (" (required)" if option["required"] else "")
            lines.append(f"| `{option['name']}` | {_cell(value)} | {_cell(text)} |")
        yield "\n".join(lines)


SECTIONS: Final[Mapping[str, Callable[[], str]]] = {
    **{f"config.{name}": partial(_config_table, name) for name in words.CONFIG},
    **{f"topology.{name}": partial(_topology_table, name) for name in words.TOPOLOGY},
    "config.params": _params,
    "codes": partial(_code_table, snapshot.CODE_TEXTS.items()),
    "refusals": partial(_code_table, refusals.SENTENCES.items()),
    "activation": _activation,
    "environment": _environment,
    "commands": _commands,
}
