"""``anvil serve``, ``anvil manage`` and ``anvil init``: the process itself and its data directory."""

import getpass
import os
import secrets
import shlex
import shutil
import sys
from importlib import resources
from pathlib import Path
from typing import Final

from .outcome import Json, Outcome, failed, tell_traceback
from .spec import Arguments

SETTINGS: Final = "anvil_site.settings"
GUNICORN: Final = ("gunicorn", "--config", "python:anvil_site.gunicorn", "anvil_site.wsgi:application")
EXAMPLES: Final = {
    "router.toml": "router.toml",
    "topology.toml": "topology.toml",
    "anvil.env": "anvil.env.txt",
}


def serve(arguments: Arguments) -> Outcome:
    """Become gunicorn. Returns only when that is not possible."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(sys.executable, [sys.executable, "-m", *GUNICORN])  # noqa: S606 - our own fixed arguments
    except OSError:
        return failed("server_missing")


def manage(rest: list[str]) -> int:
    """Django's own command line, with its own output and errors."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", SETTINGS)
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(["anvil manage", *rest])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def init(arguments: Arguments) -> Outcome:
    """Set up an empty data directory; what is in use is not touched, what fails is taken away again."""
    named = os.environ.get("ANVIL_DATA") or "var"
    data_dir = Path(named).resolve()
    existed = data_dir.exists()
    if existed and (not data_dir.is_dir() or any(data_dir.iterdir())):
        return failed("already_initialised")
    admin = _admin()
    if isinstance(admin, str):
        return failed(admin)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        data_dir.chmod(0o700)
        refusal = _fill(data_dir, *admin)
    except Exception:  # noqa: BLE001 - the text of a file or database error names paths and hosts
        tell_traceback()
        refusal = "init_failed"
    if refusal is not None:
        _empty(data_dir, existed=existed)
        return failed(refusal)
    files: list[Json] = list(EXAMPLES)
    return Outcome(
        data={"initialised": True, "files": files},
        lines=(
            f"The data directory is set up, with a first user, {', '.join(EXAMPLES)}. Next:",
            f"  cd {shlex.quote(named)}",
            "  set -a; . ./anvil.env; set +a   the environment of router and command, with a token",
            "  edit router.toml and topology.toml, then:",
            "  anvil router check --config router.toml --topology topology.toml",
            "  anvil router install-config --config router.toml --topology topology.toml --confirm",
            "  anvil serve                     people log in at /fleet/; anvil --help lists the rest",
        ),
    )


def _admin() -> tuple[str, str] | str:
    """The first user's name and password, from the environment or from the person at the terminal, or a code.

    A typed password is asked for twice: nobody sees it, and a slip would shut its owner out.
    """
    name, password = os.environ.get("ANVIL_ADMIN_USER"), os.environ.get("ANVIL_ADMIN_PASSWORD")
    if name and password:
        return name, password
    if not sys.stdin.isatty():
        return "admin_missing"
    if not name:
        # Not input(): it writes its prompt to stdout, where an envelope may be wanted.
        print("Name of the first user: ", end="", file=sys.stderr, flush=True)
        name = sys.stdin.readline().strip()
    if not password:
        password = getpass.getpass("Password: ")
        if password and getpass.getpass("Password again: ") != password:
            return "admin_mismatch"
    return (name, password) if name and password else "admin_missing"


def _fill(data_dir: Path, name: str, password: str) -> str | None:
    """Database, first user and example files; a code when the user or the directory is refused."""
    os.environ["ANVIL_DATA"] = str(data_dir)
    from anvil_site.offline import LedgerOwned, owning_data_directory

    try:
        with owning_data_directory():
            from django.contrib.auth.models import User
            from django.contrib.auth.password_validation import validate_password
            from django.core.exceptions import ValidationError

            user = User(username=name, is_staff=True, is_superuser=True)
            try:
                validate_password(password, user)
                user.set_password(password)
                user.full_clean()
            except ValidationError:
                return "admin_refused"
            user.save()
            _write_examples(data_dir)
    except LedgerOwned:
        return "ledger_owned"
    return None


def _write_examples(data_dir: Path) -> None:
    values = {"{data}": shlex.quote(str(data_dir)), "{token}": secrets.token_urlsafe(32)}
    source = resources.files(__package__).joinpath("examples")
    for target, name in EXAMPLES.items():
        text = source.joinpath(name).read_text(encoding="ascii")
        for place, value in values.items():
            text = text.replace(place, value)
        descriptor = os.open(data_dir / target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)


def _empty(data_dir: Path, *, existed: bool) -> None:
    """Take away what a failed set-up left in a directory that was empty before it."""
    if not data_dir.is_dir():
        return
    for path in data_dir.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    if not existed:
        data_dir.rmdir()
