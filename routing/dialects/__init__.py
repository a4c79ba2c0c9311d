"""The callers' wires, by the path that speaks each."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from routing.dialects.base import Dialect
from routing.dialects.openai_chat import ChatDialect

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType({"/v1/chat/completions": ChatDialect()})
