"""Fixtures of the command line's tests."""

from collections.abc import Iterator

import pytest

from tests.unit.anvil_site.cli_support import TOKEN, Anvil, FakeRouter, running_router


@pytest.fixture
def anvil(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Anvil:
    """The command line, with no router to be found unless a test asks for one."""
    monkeypatch.setenv("ANVIL_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("ANVIL_TOKEN", raising=False)
    return Anvil(capsys)


@pytest.fixture
def router(anvil: Anvil, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRouter]:
    """A router at ANVIL_URL that answers by script and wants a token."""
    with running_router() as running:
        monkeypatch.setenv("ANVIL_URL", running.url)
        monkeypatch.setenv("ANVIL_TOKEN", TOKEN)
        yield running
