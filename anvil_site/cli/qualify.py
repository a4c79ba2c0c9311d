"""``anvil qualify plan``: prints the qualification procedure. It runs nothing."""

from importlib import resources

from .outcome import Outcome
from .spec import Arguments


def plan(arguments: Arguments) -> Outcome:
    text = resources.files(__package__).joinpath("qualification.txt").read_text(encoding="ascii")
    return Outcome(data={"procedure": text.splitlines()}, document=text)
