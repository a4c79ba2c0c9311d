"""The catalog of tools is pinned: every change to it that was ever intended is named here."""

import asyncio
import copy
from typing import Any

import pytest
from mcp import Client

from anvil_site.mcp import catalog, tools
from anvil_site.mcp.server import build

pytestmark = pytest.mark.requirement("C-T009.1")

DIGEST = "da34a802948bb6cb31fcabfc43445b4edc5c9b6c99a4aaef22bcd850a44b0b40"
"""Of the catalog as it is."""

BEFORE_MEMBERS = "169ce8517e674f9b92cae591a8e3fa1ff6c4f29a2de9cd1b6c7b6e3a365a239f"
"""Of the catalog before transitions took a member."""

CATALOG: list[dict[str, Any]] = [copy.deepcopy(dict(tool)) for tool in catalog.TOOLS]
BY_NAME = {tool["name"]: tool for tool in CATALOG}
TRANSITION = BY_NAME["router_transition"]


def test_the_catalog_is_the_pinned_one() -> None:
    assert catalog.digest() == DIGEST


def test_members_changed_three_places_of_it_and_nothing_else() -> None:
    """The member property, the number of properties that comes of it, and the words of the description."""
    before = copy.deepcopy(CATALOG)
    (transition,) = [tool for tool in before if tool["name"] == "router_transition"]
    del transition["inputSchema"]["properties"]["member"]
    transition["inputSchema"]["maxProperties"] = 6
    transition["description"] = transition["description"].replace(
        "a tier, or one declared member of a replica tier, takes", "a tier takes"
    )
    assert catalog.digest(before) == BEFORE_MEMBERS


@pytest.mark.parametrize("place", ["description", "name", "annotations", "inputSchema"])
def test_any_other_change_shows_in_the_digest(place: str) -> None:
    for index in range(len(CATALOG)):
        changed = copy.deepcopy(CATALOG)
        changed[index][place] = "changed"
        assert catalog.digest(changed) != DIGEST
    assert catalog.digest(list(reversed(CATALOG))) != DIGEST


def test_a_client_is_shown_exactly_the_catalog_in_its_order() -> None:
    async def shown() -> list[dict[str, Any]]:
        async with Client(build()) as client:
            listed = await client.list_tools()
            return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools]

    assert asyncio.run(shown()) == CATALOG


def test_every_tool_has_a_handler_and_every_handler_a_tool() -> None:
    assert list(tools.NAMES) == list(BY_NAME)
    for name, tool in tools._TOOLS.items():
        assert list(tool.checks) == list(BY_NAME[name]["inputSchema"]["properties"])


def test_the_schema_of_a_transition_is_closed_and_its_member_bounded() -> None:
    schema = TRANSITION["inputSchema"]
    assert schema["type"] == "object"
    assert schema["required"] == ["action"]
    assert schema["additionalProperties"] is False
    assert schema["maxProperties"] == 7
    assert list(schema["properties"]) == [
        "action",
        "tier",
        "member",
        "reason",
        "timeout",
        "confirm",
        "dry_run",
    ]
    assert schema["properties"]["action"] == {
        "type": "string",
        "enum": ["status", "quiesce", "drain", "readmit"],
    }
    for name in ("tier", "member"):
        bounds = {key: value for key, value in schema["properties"][name].items() if key != "description"}
        assert bounds == {
            "type": "string",
            "minLength": 1,
            "maxLength": 64,
            "pattern": "^[A-Za-z][A-Za-z0-9_-]{0,63}$",
        }


def test_every_schema_is_closed_and_only_transitions_change_anything() -> None:
    for name, tool in BY_NAME.items():
        schema = tool["inputSchema"]
        assert schema["additionalProperties"] is False
        assert schema["maxProperties"] == len(schema["properties"])
        assert tool["annotations"]["readOnlyHint"] is (name != "router_transition")
        assert tool["annotations"]["openWorldHint"] is False
    assert TRANSITION["annotations"]["destructiveHint"] is True
