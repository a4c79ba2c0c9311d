"""Clients that are not the vendors': litellm's, and the Vercel AI SDK's OpenAI-compatible provider.

Both are installed by ``scripts/clients``, apart from everything of ours. Without it these tests are skipped,
but on CI, where they install what they need.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness import ROOT, await_rest
from tests.live.wires_fleet import ALIASES, PNG, SCHEMA, SCHEMA_SAMPLE, Fleet, spoken, wires_fleet

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013")

INSTALLED = ROOT / "var" / "clients"
SCRIPTS = Path(__file__).parent / "clients"
TEXTS = {spoken(name) for name in ("engine-d", "engine-a", "engine-b")}
CALLED = [["get_weather", SCHEMA_SAMPLE], ["get_time", SCHEMA_SAMPLE]]
TOLD = ": the tools said rain and noon; one token per"


@pytest.fixture(scope="module")
def clients() -> Path:
    """Where the clients are."""
    if os.environ.get("CI") == "true":
        subprocess.run([ROOT / "scripts" / "clients"], check=True, timeout=600, stdin=subprocess.DEVNULL)
    if not (INSTALLED / ".made").exists():
        pytest.skip("litellm and the Vercel AI SDK are not installed: scripts/clients")
    return INSTALLED


@pytest.fixture(scope="module")
def fleet(clients: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with wires_fleet(tmp_path_factory.mktemp("wires")) as fleet:
        yield fleet


def run(*command: object) -> dict[str, Any]:
    """What a client's script prints."""
    environment = {**os.environ, "PNG": PNG, "SCHEMA": json.dumps(SCHEMA)}
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize("alias", ALIASES)
def test_litellm(fleet: Fleet, clients: Path, alias: str) -> None:
    python = clients / "litellm" / "bin" / "python"
    seen = run(python, SCRIPTS / "litellm_calls.py", fleet.router.url, fleet.router.token, alias)

    assert seen["openai"].pop("responses") in TEXTS
    assert seen["openai"].pop("structured") == SCHEMA_SAMPLE
    for calls in seen.values():
        text, finish = calls.pop("plain")
        assert text in TEXTS
        assert finish == "stop"
        assert calls.pop("streamed") in TEXTS
        for name in ("round", "streamed_round"):
            told = calls.pop(name)
            assert told["called"] == CALLED
            assert told["text"].endswith(TOLD)
        assert calls == {"usage": 12, "image": 4 + 1 + 85, "unknown": 404}
    await_rest(fleet.router)


@pytest.mark.parametrize("alias", ALIASES)
def test_the_vercel_ai_sdk(fleet: Fleet, clients: Path, alias: str) -> None:
    base = f"{fleet.router.url}/v1"
    seen = run("node", SCRIPTS / "vercel.mjs", base, fleet.router.token, alias, clients / "node")

    for name in ("plain", "streamed"):
        told = seen.pop(name)
        assert told.pop("text") in TEXTS
        assert told == {"finish": "stop", "usage": 12}
    for name in ("round", "streamedRound"):
        told = seen.pop(name)
        assert told["called"] == CALLED
        assert told["text"].endswith(TOLD)
    assert seen == {
        "structured": SCHEMA_SAMPLE,
        "image": 4 + 1 + 85,
        "unknown": {
            "status": 404,
            "message": "No such model. GET /v1/models lists the ones that are served here.",
            "retryable": False,
        },
        "aborted": "abort",
    }
    await_rest(fleet.router)
