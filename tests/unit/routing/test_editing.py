"""One value of a captured configuration changes and every other byte stays."""

from pathlib import Path

import pytest

from routing.config import parse_config
from routing.editing import EditError, with_base_url
from tests import corpus

pytestmark = pytest.mark.requirement("contract 5 promote")

OLD, NEW = "http://old:1/v1", "http://new:2/v1"
REST = 'id = "solo"\ncontext_limit = 4096\nmodel = "qwen"'


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (f"base_url = {OLD!r}   # the old one", f"'{OLD}'"),
        (f'"base_url"   =\t"{OLD}"', f'"{OLD}"'),
        (f'base_url = """{OLD}"""', f'"""{OLD}"""'),
        ('base_url = "http://old\\u003A1/v1"', '"http://old\\u003A1/v1"'),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_only_the_value_changes(written: str, value: str, line_end: str) -> None:
    before = line_end.join(
        [
            "# Fleet of the third floor",
            "[router.model_routes]",
            '"llm.solo"="solo"  # spelled so on purpose',
            "",
            "[[router.tiers]]",
            f'id = "other"\nbase_url = "{OLD}"\ncontext_limit = 4_096\nmodel = "qwen"'.replace(
                "\n", line_end
            ),
            "",
            "[[router.tiers]]  # served by one GPU",
            REST.replace("\n", line_end),
            written,
            "extra_body = { top_k = 1, temperature=0.50 }",
            "",
            "[router]",
            "relay_timeout = 7",
        ]
    )
    after = with_base_url(before.encode(), "solo", NEW).decode()
    assert after == before.replace(written, written.replace(value, f'"{NEW}"'))


def test_tiers_in_one_inline_list() -> None:
    entry = '{{ id="{}",base_url="{}" , context_limit = 4096, model = "qwen" }}'
    before = f"router.tiers = [ {entry.format('other', OLD)},\n  {entry.format('solo', OLD)}, # last\n]"
    after = f"router.tiers = [ {entry.format('other', OLD)},\n  {entry.format('solo', NEW)}, # last\n]"
    assert with_base_url(before.encode(), "solo", NEW) == after.encode()


@pytest.mark.parametrize("path", corpus.documents("config", "valid"), ids=lambda path: path.stem)
def test_every_direct_tier_of_the_valid_corpus(path: Path) -> None:
    document = path.read_bytes()
    for tier in parse_config(document).tiers:
        if tier.is_replica:
            with pytest.raises(EditError):
                with_base_url(document, tier.id, NEW)
            continue
        after = with_base_url(document, tier.id, NEW)
        assert with_base_url(after, tier.id, tier.base_url) == document
        assert parse_config(after).tier(tier.id).base_url == NEW


@pytest.mark.parametrize(
    ("document", "tier_id", "url"),
    [
        (b"not toml", "solo", NEW),
        (b"\xff", "solo", NEW),
        (f'[[router.tiers]]\n{REST}\nbase_url = "{OLD}"'.encode(), "absent", NEW),
        (f'[[router.tiers]]\n{REST}\nbase_url = "{OLD}"'.encode(), "solo", "not a url"),
    ],
)
def test_what_can_not_be_edited_is_refused_without_its_text(document: bytes, tier_id: str, url: str) -> None:
    with pytest.raises(EditError) as caught:
        with_base_url(document, tier_id, url)
    assert str(caught.value) == "the configuration can't be edited in place"
    assert caught.value.__cause__ is None
