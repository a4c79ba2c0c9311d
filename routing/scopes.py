"""The name of a scope: what can be quiesced, drained and readmitted by itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ScopeId:
    """A tier, or one member of it; ``str`` is how people, links and forms name it: ``chat/member-a``."""

    tier_id: str
    member_id: str | None = None

    def __str__(self) -> str:
        return self.tier_id if self.member_id is None else f"{self.tier_id}/{self.member_id}"

    @property
    def anchor(self) -> str:
        """Of an element that shows the scope: neither id holds a dot."""
        return str(self).replace("/", ".")
