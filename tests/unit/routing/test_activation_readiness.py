"""A member that an activation adds does not hold up its peers' traffic (contract 1 and 3)."""

import pytest

from tests.unit.routing.availability_support import PATIENCE, Held, availability, crew, member, models


@pytest.mark.requirement("contract 1 activation", "contract 3")
def test_a_member_that_joins_is_probed_by_the_prober_and_never_in_a_peers_request() -> None:
    held = Held()
    checker = availability(member("t", "a", "a"), transport=held)
    checker.start()
    try:
        held.next().answer(models("qwen"))
        assert checker.first_round_done.wait(PATIENCE)
        checker.reconfigure(
            [member("t", "a", "a"), member("t", "b", "b")], interval=5.0, timeout=3.0, max_bytes=65_536
        )
        with crew(held) as threads:
            # A probe in line would hang, since nothing has answered for b.
            readiness = threads.run(checker.readiness, "t").result(PATIENCE)
            assert {name: result.reason for name, result in readiness.items()} == {
                "a": "identity_passed",
                "b": "probe_pending",
            }
            assert held.next().host == "b"
    finally:
        held.release()
        assert checker.stop()
    assert [call.host for call in held.calls] == ["a", "b"]
