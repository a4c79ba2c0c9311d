"""The wheel, installed into an environment of its own, does everything from an empty directory.

Building and installing need a package index. Where none can be reached these tests are skipped; whatever else
goes wrong fails them.
"""

import http.client
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
import venv
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.harness import ROOT, ReservedPorts, eventually, request

PACKAGES = ("admission", "anvil_site", "demo", "routing", "telemetry", "templates")
PASSWORD = "correct-horse-battery"
UNREACHABLE = re.compile(
    r"Failed to establish a new connection|Temporary failure in name resolution|Network is unreachable"
)


def environment(**changes: str) -> dict[str, str]:
    """Ours, without anything that could lead back to this checkout."""
    ours = ("ANVIL_", "DJANGO_", "GUNICORN_", "PYTHON", "DATABASE_URL", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | changes


def pip(python: Path | str, *arguments: str) -> None:
    """Run pip; skip the test when it can't reach an index."""
    done = subprocess.run(
        [str(python), "-m", "pip", "--disable-pip-version-check", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
    )
    if done.returncode and UNREACHABLE.search(done.stdout + done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A fresh environment with the wheel in it."""

    wheel: Path
    bin: Path

    def run(self, *words: str, cwd: Path, timeout: float = 120.0, **variables: str) -> str:
        """Run a program of the environment in ``cwd``; its output."""
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=cwd,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built from a copy of the sources, so that nothing an earlier build left can get in."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    source.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(directory), str(source))
    (wheel,) = directory.glob("*.whl")
    shutil.rmtree(source)
    fresh = directory / "environment"
    venv.create(fresh, with_pip=True)
    python = fresh / "bin" / "python"
    pip(python, "install", "--quiet", f"{wheel}[demo]")
    pip(python, "check")
    return Installed(wheel=wheel, bin=fresh / "bin")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    directory = tmp_path / "empty"
    directory.mkdir()
    return directory


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    there = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == there
    assert installed.wheel.name.startswith("anvil_router-")


def test_it_is_the_installed_package_that_runs(installed: Installed, empty: Path) -> None:
    found = installed.run("python", "-c", "import routing, templates; print(routing.__file__)", cwd=empty)
    assert Path(found.strip()).is_relative_to(installed.bin.parent)
    version = installed.wheel.name.split("-")[1]
    assert installed.run("anvil", "--version", cwd=empty) == f"anvil {version}\n"
    assert "Qualifying a replica set" in installed.run("anvil", "qualify", "plan", cwd=empty)
    assert list(empty.iterdir()) == []


@dataclass(frozen=True, kw_only=True)
class Serving:
    port: int
    data: Path

    def browser(self) -> Callable[..., str]:
        """``open(path, **form)`` with cookies: what a person logged in as the first user is shown."""
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        base = f"http://127.0.0.1:{self.port}"

        def browse(path: str, **form: str) -> str:
            data = urllib.parse.urlencode(form).encode() if form else None
            with opener.open(urllib.request.Request(base + path, data), timeout=10) as answer:
                return answer.read().decode()

        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', browse("/admin/login/"))
        assert token is not None
        browse(
            "/admin/login/", csrfmiddlewaretoken=token[1], username="ada", password=PASSWORD, next="/fleet/"
        )
        return browse


@pytest.fixture
def serving(installed: Installed, empty: Path) -> Iterator[Serving]:
    """``anvil init`` and ``anvil serve``, as a new user would, from an empty directory."""
    data = empty / "data"
    person = {"ANVIL_ADMIN_USER": "ada", "ANVIL_ADMIN_PASSWORD": PASSWORD}
    installed.run("anvil", "init", cwd=empty, ANVIL_DATA=str(data), **person)
    documents = ["--config", str(data / "router.toml"), "--topology", str(data / "topology.toml")]
    assert "valid" in installed.run("anvil", "router", "check", *documents, cwd=empty)
    with ReservedPorts() as ports:
        variables = {
            "ANVIL_DATA": str(data),
            "ANVIL_BIND": f"127.0.0.1:{ports.first}",
            "ANVIL_URL": f"http://127.0.0.1:{ports.first}",
        }
        installed.run("anvil", "router", "install-config", *documents, "--confirm", cwd=empty, **variables)
        with (empty / "serve.log").open("wb") as log:
            process = subprocess.Popen(
                [str(installed.bin / "anvil"), "serve"],
                cwd=empty,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:

            def ready() -> bool:
                assert process.poll() is None, (empty / "serve.log").read_text()[-4000:]
                try:
                    return request(ports.first, "GET", "/readyz", timeout=2.0).status == 200
                except (OSError, http.client.HTTPException):
                    return False

            eventually(ready, timeout=60.0, interval=0.1)
            yield Serving(port=ports.first, data=data)
        finally:
            process.terminate()
            try:
                assert process.wait(timeout=40) == 0
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=10)
                raise


def test_it_serves_the_console_and_all_that_its_pages_load(serving: Serving, empty: Path) -> None:
    browse = serving.browser()
    assert "member-a" in browse("/fleet/")
    assert "AnvilMemberOut" in browse("/fleet/runbook/")
    loaded = {
        path
        for page in ("/fleet/", "/admin/", "/configuration/", "/api/docs/")
        for path in re.findall(r'(?:href|src)="(/static/[^"?]+)', browse(page))
    }
    for room in ("admin", "console", "django_htmx", "drf_spectacular_sidecar"):
        assert any(path.startswith(f"/static/{room}/") for path in loaded), room
    ours = {
        f"/static/{path.relative_to(ROOT / 'anvil_site' / 'static').as_posix()}"
        for path in (ROOT / "anvil_site" / "static").rglob("*")
        if path.is_file()
    }
    for path in sorted(loaded | ours):
        answer = request(serving.port, "GET", path)
        assert (answer.status, answer.body != b"") == (200, True), path
    assert sorted(path.name for path in empty.iterdir()) == ["data", "serve.log"]
    assert {"anvil.env", "router.toml", "topology.toml", "secret_key"} <= {
        path.name for path in serving.data.iterdir()
    }


def test_the_demo_runs_from_the_wheel(installed: Installed, empty: Path) -> None:
    with ReservedPorts(4) as ports:
        first = ports.first
        options = ["--port", str(first), "--engine-base-port", str(first + 1), "--data", str(empty / "data")]
        said = installed.run("python", "-m", "demo", "--once", *options, cwd=empty, timeout=180)
    assert re.search(r"streamed through tier chat, served by member-[ab]", said)
    assert [path.name for path in empty.iterdir()] == ["data"]
