"""Whatever a configuration may hold, its TOML says the same (contract 1; no key and no value is lost)."""

import json
import tomllib
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.config import RouterConfig, Tier, parse_config
from routing.rendering import config_document, render

SCALARS = st.one_of(
    st.text(max_size=20),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = st.recursive(
    SCALARS,
    lambda below: st.one_of(
        st.lists(below, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=8), below, max_size=3).map(MappingProxyType),
    ),
    max_leaves=10,
)
RESERVED = {"model", "stream", "stream_options", "messages", "input", "system"}
TABLES = st.dictionaries(st.text(max_size=8).filter(lambda key: key not in RESERVED), VALUES, max_size=4).map(
    MappingProxyType
)


@pytest.mark.requirement("contract 1")
@given(extra_body=TABLES, defaults=TABLES)
def test_free_form_tables_survive(extra_body: Any, defaults: Any) -> None:
    tiers = tuple(
        Tier(
            id=name,
            base_url="http://127.0.0.1:1/v1",
            context_limit=1,
            model="m",
            extra_body=extra_body,
            extra_body_defaults=defaults,
        )
        for name in ("one", "two")
    )
    config = RouterConfig(model_routes=MappingProxyType({"a": "one", "b": "two"}), tiers=tiers)
    document = config_document(config)
    rendered = render(document)
    assert json.dumps(tomllib.loads(rendered.decode()), sort_keys=True) == json.dumps(
        document, sort_keys=True
    )
    assert parse_config(rendered) == config


def test_free_form_keys_are_written_in_one_order() -> None:
    """PostgreSQL's jsonb keeps none: a configuration that went through its rows must not look changed."""
    template = """
[router.model_routes]
"a" = "t"
[[router.tiers]]
id = "t"
base_url = "http://127.0.0.1:1/v1"
context_limit = 10
model = "m"
extra_body = {%s}
"""
    one, two = (
        parse_config((template % keys).encode())
        for keys in ("b = 1, a = [{d = 1, c = 2}]", "a = [{c = 2, d = 1}], b = 1")
    )
    assert render(config_document(one)) == render(config_document(two))
