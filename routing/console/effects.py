"""What a transition will do, in sentences, before somebody confirms it."""

from collections.abc import Collection, Iterator

from routing.console.fleet import ScopeView, TierCard
from routing.scopes import ScopeId
from routing.wording import count, listed, sentence


def of_quiesce(
    card: TierCard, scope: ScopeView, *, chosen: Collection[ScopeId], status: int
) -> Iterator[str]:
    """Quiescing ``scope`` together with everything ``chosen``; ``status`` is what callers then get."""
    if scope.hold is not None:
        yield f"It is quiesced already; its reason will be replaced. Until now: {scope.hold.reason}."
        return
    if scope.active:
        running = count(scope.active, "running request goes", "running requests go")
        yield f"New requests stop at once; {running} on to the end."
    else:
        yield "New requests stop at once; none is running."
    callers = f"requests for {listed(card.aliases)}" if card.aliases else "requests to the tier"
    left = [
        str(member.id.member_id) for member in card.members if member.can_serve and member.id not in chosen
    ]
    if scope.id.member_id is None:
        yield sentence(f"{callers} are refused with {status} until the tier is readmitted")
    elif ScopeId(scope.id.tier_id) in chosen or card.scope.hold is not None:
        yield "Its tier is quiesced, too, and serves nothing meanwhile."
    elif left:
        yield sentence(f"{callers} go on being served by {listed(left)}")
    else:
        yield sentence(f"no other member is ready: {callers} are refused with {status} meanwhile")
    yield "It stays quiesced, after a restart of the router too, until somebody readmits it."


def of_drain(scope: ScopeView) -> Iterator[str]:
    """Draining ``scope``."""
    if scope.hold is None:
        yield "It still admits requests: quiesce it first."
    elif scope.is_draining_now:
        yield "A drain of it is running already."
    elif scope.active:
        yield sentence(
            f"waits until {count(scope.active, 'running request has', 'running requests have')} ended"
        )
        yield "Nothing is cancelled, and closing this page does not stop it."
    else:
        yield "Nothing is running there: it is drained at once."


def of_readmit(card: TierCard, scope: ScopeView) -> Iterator[str]:
    """Readmitting ``scope``."""
    if scope.hold is None:
        yield "It is not quiesced: there is nothing to readmit."
        return
    whom = "its members that are not quiesced are" if card.members and not scope.id.member_id else "it is"
    if scope.expected_model is not None:
        yield f"First {whom} probed; it opens only when {scope.expected_model} is served there."
    else:
        yield f"First {whom} probed; it opens only when that goes well."
    if scope.id.member_id is not None and card.scope.hold is not None:
        yield "Its tier stays quiesced and is readmitted on its own."
    held = [str(member.id.member_id) for member in card.members if member.hold is not None]
    if scope.id.member_id is None and held:
        yield f"What stays quiesced: {listed(held)}."
