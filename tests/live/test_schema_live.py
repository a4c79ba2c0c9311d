"""The REST part of a real router, tried at random against its own schema and held to it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.harness import Engine, Router, direct_tier, documents, replica_tier

pytestmark = pytest.mark.requirement("contract 2 wire")

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "ignored_auth",
)


def test_random_requests_are_answered_as_the_schema_says(
    make_engine: Callable[..., Engine], make_router: Callable[..., Router], tmp_path: Path
) -> None:
    engines = [make_engine("engine-a"), make_engine("engine-b")]
    router = make_router(documents(replica_tier(engines), direct_tier(engines[0]))).start()
    assert router.chat("live.chat").status == 200
    schema = router.request("GET", "/api/schema/")
    assert schema.status == 200
    document = tmp_path / "schema.json"
    document.write_bytes(schema.body)
    assert json.loads(schema.body)["openapi"].startswith("3.1")

    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", str(document), "--url", router.url,
            "--header", f"Authorization: Bearer {router.token}",
            "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing",
            "--max-examples", "8", "--seed", "8", "--request-timeout", "10", "--no-color",
            "--generation-database", "none", "--suppress-health-check", "all",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=150,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert router.chat("live.chat").status in (200, 503)
    assert "Traceback" not in router.log
