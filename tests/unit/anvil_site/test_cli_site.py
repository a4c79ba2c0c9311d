"""``anvil init``, ``serve``, ``manage`` and ``qualify``; what needs a directory is a process of its own."""

import json
import os
import pty
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from anvil_site.cli import site
from anvil_site.ownership import LedgerLock
from tests.unit.anvil_site.cli_support import Anvil

ADMIN = {"ANVIL_ADMIN_USER": "ada", "ANVIL_ADMIN_PASSWORD": "correct-horse-battery"}
RUN = "import sys; from anvil_site.cli import main; sys.exit(main(sys.argv[1:]))"
ROOT = Path(__file__).resolve().parents[3]


def environment(**values: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ANVIL_") and name not in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")
    }
    return {**kept, "PYTHONPATH": str(ROOT), **values}


def run(directory: Path, *words: str, **values: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *words],
        cwd=directory,
        env=environment(**values),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def superusers(directory: Path, data: Path) -> list[str]:
    code = (
        "from django.contrib.auth.models import User; "
        "print([u.username for u in User.objects.filter(is_superuser=True) if u.check_password("
        f"{ADMIN['ANVIL_ADMIN_PASSWORD']!r})])"
    )
    result = run(directory, "manage", "shell", "--no-imports", "-c", code, ANVIL_DATA=str(data))
    assert result.returncode == 0, result.stderr
    found: list[str] = json.loads(result.stdout.replace("'", '"'))
    return found


@pytest.mark.requirement("contract 5")
class TestInit:
    def test_an_empty_directory(self, tmp_path: Path) -> None:
        result = run(tmp_path, "init", "--json", **ADMIN)
        assert (result.returncode, result.stderr) == (0, "")
        assert json.loads(result.stdout) == {
            "command": "init",
            "ok": True,
            "context": None,
            "data": {"initialised": True, "files": ["router.toml", "topology.toml", "anvil.env"]},
            "warnings": [],
            "errors": [],
        }
        data = tmp_path / "var"
        assert [path.name for path in tmp_path.iterdir()] == ["var"]
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        for name in ("router.toml", "topology.toml", "anvil.env", "secret_key"):
            assert stat.S_IMODE((data / name).stat().st_mode) == 0o600, name
        assert superusers(tmp_path, data) == ["ada"]
        lines = dict(
            line.split("=", 1)
            for line in (data / "anvil.env").read_text().splitlines()
            if not line.startswith("#")
        )
        assert lines["ANVIL_DATA"] == shlex.quote(str(data))
        assert len(lines["ANVIL_TOKEN"]) == 43
        assert lines["ANVIL_TOKEN"] not in result.stdout
        assert ADMIN["ANVIL_ADMIN_PASSWORD"] not in result.stdout + result.stderr

    def test_its_examples_are_a_valid_pair(self, tmp_path: Path, anvil: Anvil) -> None:
        source = Path(site.__file__).parent / "examples"
        result = anvil(
            *("router", "check", "--config", str(source / "router.toml")),
            *("--topology", str(source / "topology.toml"), "--json"),
        )
        assert result.code == 0
        assert result.envelope["data"]["replica_member_count"] == 2

    def test_then_a_configuration_without_a_router(self, tmp_path: Path) -> None:
        data = tmp_path / "it's here"
        data.mkdir()
        data.chmod(0o755)
        assert run(tmp_path, "init", **ADMIN, ANVIL_DATA=str(data)).returncode == 0
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        words = ["router", "install-config", "--config", str(data / "router.toml"), "--confirm", "--json"]
        words += ["--topology", str(data / "topology.toml")]
        local = {"ANVIL_DATA": str(data), "ANVIL_URL": "http://127.0.0.1:9"}
        first = run(tmp_path, *words, **local)
        assert first.returncode == 0, first.stderr
        envelope = json.loads(first.stdout)
        assert (envelope["context"], envelope["data"]["applied"]) == (None, True)
        lock = LedgerLock(data)
        assert lock.try_acquire()
        try:
            second = run(tmp_path, *words, **local)
        finally:
            lock.release()
        assert second.returncode == 1
        assert json.loads(second.stdout)["errors"] == [
            {
                "code": "ledger_owned",
                "message": "another process owns the data directory; "
                "set ANVIL_URL and ANVIL_TOKEN to ask that one, or stop it first",
            }
        ]

    def test_a_directory_in_use_is_not_touched(self, tmp_path: Path) -> None:
        data = tmp_path / "var"
        data.mkdir()
        data.chmod(0o755)
        (data / "anvil.sqlite3").write_bytes(b"something")
        result = run(tmp_path, "init", **ADMIN)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == (
            "init: the data directory is in use already; nothing was changed; name another in ANVIL_DATA, "
            "or start this one: anvil serve (already_initialised)\n"
        )
        assert [path.name for path in data.iterdir()] == ["anvil.sqlite3"]
        assert (data / "anvil.sqlite3").read_bytes() == b"something"
        assert stat.S_IMODE(data.stat().st_mode) == 0o755

    def test_a_file_in_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "var").write_bytes(b"")
        result = run(tmp_path, "init", "--json", **ADMIN)
        assert result.returncode == 1
        assert json.loads(result.stdout)["errors"][0]["code"] == "already_initialised"

    @pytest.mark.parametrize(
        ("name", "password"), [("ada", "12345678"), ("ada", "short"), ("two words", "correct-horse-battery")]
    )
    def test_a_user_that_is_refused_leaves_nothing_behind(
        self, tmp_path: Path, name: str, password: str
    ) -> None:
        result = run(tmp_path, "init", ANVIL_ADMIN_USER=name, ANVIL_ADMIN_PASSWORD=password)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith("init: the first user's name or password does not do")
        assert name not in result.stderr
        assert password not in result.stderr
        assert list(tmp_path.iterdir()) == []

    def test_a_failure_on_the_way_leaves_nothing_behind(self, tmp_path: Path) -> None:
        url = "sqlite:////nowhere/sk-secret/at/all.sqlite3"
        (tmp_path / "var").mkdir()
        result = run(tmp_path, "init", **ADMIN, DATABASE_URL=url)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == (
            "init: the data directory could not be set up and is as before; ANVIL_TRACEBACK=1 shows why "
            "(init_failed)\n"
        )
        assert list((tmp_path / "var").iterdir()) == []

    def test_without_a_user_and_without_a_terminal(self, tmp_path: Path) -> None:
        result = run(tmp_path, "init", "--json", ANVIL_ADMIN_USER="ada")
        assert result.returncode == 1
        assert json.loads(result.stdout)["errors"][0]["code"] == "admin_missing"
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("slip", ["", "x"])
    def test_at_a_terminal_it_asks(self, tmp_path: Path, slip: str) -> None:
        """The prompts go to the terminal, so that stdout holds the envelope alone.

        The password is asked for twice, and a slip in it sets nothing up.
        """
        ours, theirs = pty.openpty()
        try:
            with subprocess.Popen(
                [sys.executable, "-c", RUN, "init", "--json"],
                cwd=tmp_path,
                env=environment(),
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            ) as process:
                assert process.stdout is not None
                assert process.stderr is not None
                prompt = b""
                while not prompt.endswith(b"Name of the first user: "):
                    prompt += process.stderr.read(1)
                os.write(ours, b"ada\n")
                for question, typed in ((b"Password: ", ""), (b"Password again: ", slip)):
                    while not prompt.endswith(question):
                        piece = process.stderr.read(1)
                        assert piece, prompt
                        prompt += piece
                    os.write(ours, ADMIN["ANVIL_ADMIN_PASSWORD"].encode() + typed.encode() + b"\n")
                out, _ = process.communicate(timeout=120)
        finally:
            os.close(ours)
            os.close(theirs)
        if slip:
            assert process.returncode == 1
            assert [error["code"] for error in json.loads(out)["errors"]] == ["admin_mismatch"]
            assert list(tmp_path.iterdir()) == []
            return
        assert process.returncode == 0
        assert json.loads(out)["data"]["initialised"] is True
        assert superusers(tmp_path, tmp_path / "var") == ["ada"]


@pytest.mark.requirement("contract 5")
class TestServeAndManage:
    def test_serve_becomes_gunicorn_with_our_configuration(
        self, anvil: Anvil, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started: list[tuple[str, list[str]]] = []

        def execv(program: str, arguments: list[str]) -> None:
            started.append((program, arguments))
            raise OSError(2, "/srv/private/python")

        monkeypatch.setattr(site.os, "execv", execv)
        result = anvil("serve", "--json")
        assert result.code == 1
        assert result.envelope["errors"] == [
            {"code": "server_missing", "message": "the server could not be started"}
        ]
        assert started == [
            (
                sys.executable,
                [
                    sys.executable,
                    *("-m", "gunicorn", "--config", "python:anvil_site.gunicorn"),
                    "anvil_site.wsgi:application",
                ],
            )
        ]

    def test_manage_hands_everything_over(self, tmp_path: Path) -> None:
        good = run(tmp_path, "manage", "check", "--help", ANVIL_DATA=str(tmp_path / "var"))
        assert good.returncode == 0
        assert "usage: anvil manage check" in good.stdout
        bad = run(tmp_path, "manage", "no-such-command", ANVIL_DATA=str(tmp_path / "var"))
        assert bad.returncode == 1
        assert "Unknown command" in bad.stderr


@pytest.mark.requirement("contract 5")
class TestQualify:
    def test_it_prints_an_inert_procedure(self, anvil: Anvil) -> None:
        shown = anvil("qualify", "plan")
        assert (shown.code, shown.err) == (0, "")
        assert "runs nothing and authorises nothing" in shown.out
        enveloped = anvil("qualify", "plan", "--json")
        assert "\n".join(enveloped.envelope["data"]["procedure"]) + "\n" == shown.out
