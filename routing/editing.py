"""Edits of a captured configuration that leave every other byte as its author wrote it.

Comments, order, blanks, line ends and spelled-out defaults stay. An edit that can't be made so is not made.
"""

from dataclasses import replace

import tomlkit
from tomlkit.exceptions import TOMLKitError

from routing.config import ConfigError, parse_config


class EditError(ValueError):
    """The document can't be edited in place; the text is fixed."""

    def __init__(self) -> None:
        super().__init__("the configuration can't be edited in place")


def with_base_url(document: bytes, tier_id: str, base_url: str) -> bytes:
    """``document``, a valid configuration, with another ``base_url`` of one direct tier.

    Raises EditError unless the result parses to the configuration it was with that one value changed.
    """
    try:
        before = parse_config(document)
        text = document.decode()
        parsed = tomlkit.parse(text)
        if tomlkit.dumps(parsed) != text:
            raise EditError
        (tier,) = (tier for tier in parsed["router"]["tiers"] if tier["id"] == tier_id)
        # The key's item is replaced, not the key: what stands around the value stays around it.
        if "base_url" not in tier:
            raise EditError
        tier["base_url"] = base_url
        after = tomlkit.dumps(parsed).encode()
        tiers = (replace(one, base_url=base_url) if one.id == tier_id else one for one in before.tiers)
        if parse_config(after) != replace(before, tiers=tuple(tiers)):
            raise EditError
    except (ConfigError, TOMLKitError, ValueError, KeyError, TypeError):
        raise EditError from None
    return after
