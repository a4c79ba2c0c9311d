"""What a service answers when it does not do what it was asked: one exception for every adapter to show."""

from collections.abc import Mapping


class Refused(Exception):
    """A request was refused.

    ``status`` is its HTTP status, ``code`` a fixed word, the text fixed; none of it repeats input. ``field``
    names what is at fault in the request, by a name of the contract. ``extra`` goes beside the error.
    ``told`` is set once the refusal is logged and counted.
    """

    def __init__(
        self,
        status: int,
        code: str,
        text: str,
        *,
        field: str | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.field = field
        self.extra = dict(extra or {})
        self.told = False


def not_ledger_owner() -> Refused:
    """This process can't act, since another one owns the ledger."""
    return Refused(503, "not_ledger_owner", "Another process is serving. Try again shortly.")
