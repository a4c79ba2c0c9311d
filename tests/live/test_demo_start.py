"""``scripts/demo`` from beginning to end, twice on one data directory."""

import os
import subprocess
import sys
from pathlib import Path

from tests.live.harness import ROOT, ReservedPorts


def test_the_password_of_the_first_start_stays(tmp_path: Path) -> None:
    """Each start gave the user a new password without a word."""
    with ReservedPorts(4) as ports:
        first, second = (run(ports.first, tmp_path / "data", password) for password in ("one-1", "two-2"))

    assert "streamed through tier chat" in first
    assert "   user admin   password from ANVIL_ADMIN_PASSWORD\n" in first
    assert (
        "   user admin   password as it was, since the user was there already; "
        "ANVIL_ADMIN_PASSWORD was not used\n"
    ) in second
    change = (
        f"another password: ANVIL_DATA={tmp_path}/data {sys.prefix}/bin/anvil manage changepassword admin\n"
    )
    assert change in second
    assert (valid("one-1", tmp_path / "data"), valid("two-2", tmp_path / "data")) == ("True\n", "False\n")


def environment(**values: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANVIL_")}
    return {**inherited, **values}


def run(first_port: int, data: Path, password: str) -> str:
    """The demo's output until it says that Ctrl-C stops it; it is then told to stop."""
    ports = ["--port", str(first_port), "--engine-base-port", str(first_port + 1)]
    demo = subprocess.Popen(
        [sys.executable, "-m", "demo", *ports, "--data", str(data)],
        cwd=ROOT,
        env=environment(ANVIL_ADMIN_PASSWORD=password, ANVIL_GRACEFUL_TIMEOUT="5"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert demo.stdout is not None
        told = ""
        for line in demo.stdout:
            told += line
            if "Ctrl-C stops everything." in line:
                demo.terminate()
        assert demo.wait(timeout=60) == 0, told
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.wait(timeout=10)
        demo.stdout.close()
    return told


def valid(password: str, data: Path) -> str:
    code = (
        "from django.contrib.auth.models import User; "
        f"print(User.objects.get(username='admin').check_password({password!r}))"
    )
    command = [sys.executable, "-m", "anvil_site.cli", "manage", "shell", "--no-imports", "-c", code]
    return subprocess.run(
        command, cwd=ROOT, env=environment(ANVIL_DATA=str(data)), capture_output=True, text=True, check=True
    ).stdout
