"""What ``scripts/demo`` refuses before anything is started: ports, the data directory, empty variables."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.__main__ import HOST, Demo, DemoFailure, main


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(autouse=True)
def no_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "8_0", "http"])
@pytest.mark.parametrize("option", ["--port", "--engine-base-port"])
def test_what_is_no_port_is_refused(option: str, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([f"{option}={port}"])
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith(
        f"scripts/demo: error: argument {option}: a port is a number from 1 to 65535\n"
    )


def test_a_listener_on_the_routers_port_is_no_router_of_ours(
    taken: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever answered ``/readyz`` there was taken for it."""
    data = tmp_path / "data"
    assert main(["--port", str(taken), "--data", str(data)]) == 1
    assert capsys.readouterr().err == (
        f"demo: port {taken}, for the router, is not to be had (address already in use); "
        "give another --port\n"
    )
    assert not data.exists()


def test_the_engines_port_that_is_taken_is_named(taken: int, tmp_path: Path) -> None:
    # The router's own must be free, and is on no other place that the engines want.
    demo = Demo(free_port(), tmp_path, taken - 1)
    with pytest.raises(
        DemoFailure, match=f"port ({taken}|{taken - 1}), for engine member-(a|b), .*base-port"
    ):
        demo.check_ports()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("port", "base", "text"),
    [
        (8000, 65_534, "--engine-base-port 65534 leaves no room for three ports; take 65533 or less"),
        (
            8103,
            8101,
            "port 8103 is wanted by the router and by an engine; give another --port or --engine-base-port",
        ),
    ],
)
def test_ports_that_do_not_fit_together(port: int, base: int, text: str, tmp_path: Path) -> None:
    with pytest.raises(DemoFailure) as failure:
        Demo(port, tmp_path, base).check_ports()
    assert str(failure.value) == text


@pytest.mark.parametrize("below", ["", "further/down"])
def test_a_file_in_place_of_the_data_directory(below: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    place = file / below if below else file
    with pytest.raises(DemoFailure) as failure:
        Demo(8000, place, 8101).start()
    assert str(failure.value) == f"--data {place} is a file, or is below one; name a directory"
    assert file.read_text() == "mine"


def test_an_empty_token_or_password_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty token was said to come from the environment, and nobody could know the one that was made."""
    monkeypatch.setenv("ANVIL_TOKEN", "")
    monkeypatch.setenv("ANVIL_ADMIN_PASSWORD", "")
    Demo(8000, tmp_path, 8101).introduce()
    told = capsys.readouterr().out
    assert "from ANVIL_TOKEN" not in told
    assert "from ANVIL_ADMIN_PASSWORD" not in told
