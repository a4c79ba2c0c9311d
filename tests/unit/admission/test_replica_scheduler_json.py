"""The canonical form of a decision: exactly its keys going out, nothing else coming in."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.replica_scheduler import (
    PressureFreshness,
    PressureSignalState,
    ReplicaCandidate,
    ReplicaDecision,
    ReplicaPressure,
    decision_as_dict,
    decision_from_mapping,
    rank_replicas,
)

FRESH = ReplicaPressure(
    PressureFreshness.FRESH, 250_000, PressureSignalState.VALID, PressureSignalState.VALID
)
STALE = ReplicaPressure(PressureFreshness.STALE, None, PressureSignalState.VALID, PressureSignalState.VALID)

CANONICAL: dict[str, Any] = {
    "selected_member_id": "b",
    "reason": "selected",
    "eligible_member_ids": ["a", "b"],
    "scores": [
        {
            "member_id": "b",
            "local_active": 0,
            "local_capacity": 4,
            "freshness": "fresh",
            "upstream_unknown": False,
            "upstream_pressure_ppm": 250_000,
            "rotating_rank": 1,
        },
        {
            "member_id": "a",
            "local_active": 1,
            "local_capacity": 2,
            "freshness": "stale",
            "upstream_unknown": True,
            "upstream_pressure_ppm": None,
            "rotating_rank": 0,
        },
    ],
}


def decision() -> ReplicaDecision:
    candidates = (ReplicaCandidate("a", True, 1, 2, STALE), ReplicaCandidate("b", True, 0, 4, FRESH))
    return rank_replicas(candidates, 0)


@pytest.mark.requirement("C-R012", "C-T005")
def test_the_canonical_form() -> None:
    raw = decision_as_dict(decision())
    assert raw == CANONICAL
    assert list(raw) == ["selected_member_id", "reason", "eligible_member_ids", "scores"]
    assert type(raw["reason"]) is str
    assert json.loads(json.dumps(raw)) == CANONICAL


@pytest.mark.requirement("C-T005")
def test_the_canonical_form_comes_back() -> None:
    assert decision_from_mapping(json.loads(json.dumps(CANONICAL))) == decision()
    empty = {
        "selected_member_id": None,
        "reason": "no-eligible-member",
        "eligible_member_ids": [],
        "scores": [],
    }
    assert decision_as_dict(decision_from_mapping(empty)) == empty


@pytest.mark.requirement("C-T005")
def test_a_forged_decision_is_not_written() -> None:
    forged = decision()
    object.__setattr__(forged.scores[0], "member_id", "http://10.0.0.1:8000")
    with pytest.raises(ValueError, match=r"\Ainvalid replica score\Z"):
        decision_as_dict(forged)
    with pytest.raises(ValueError, match=r"\Ainvalid replica decision\Z"):
        decision_as_dict(CANONICAL)  # type: ignore[arg-type]


class SubDict(dict):  # type: ignore[type-arg]
    pass


class SubList(list):  # type: ignore[type-arg]
    pass


class SubStr(str):
    __slots__ = ()


class Trap:
    """An object that must not be looked into."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)

    def __str__(self) -> str:
        raise AssertionError("formatted")

    __repr__ = __str__


def _without(raw: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name != key}


def _with_score(**changes: Any) -> dict[str, Any]:
    raw = deepcopy(CANONICAL)
    raw["scores"][0].update(changes)
    return raw


REFUSED = [
    pytest.param(None, id="none"),
    pytest.param([], id="list"),
    pytest.param("selected", id="text"),
    pytest.param(Trap(), id="object"),
    pytest.param(SubDict(CANONICAL), id="dict subclass"),
    pytest.param({**CANONICAL, "url": "http://10.0.0.1"}, id="extra key"),
    pytest.param({**_without(CANONICAL, "reason"), "why": "selected"}, id="other key"),
    pytest.param({**_without(CANONICAL, "reason"), SubStr("reason"): "selected"}, id="key subclass"),
    pytest.param({**_without(CANONICAL, "reason"), 4: "selected"}, id="key that is no text"),
    *[pytest.param(_without(CANONICAL, key), id=f"no {key}") for key in CANONICAL],
    pytest.param({**CANONICAL, "selected_member_id": "a"}, id="another winner"),
    pytest.param({**CANONICAL, "selected_member_id": None}, id="no winner"),
    pytest.param({**CANONICAL, "selected_member_id": SubStr("b")}, id="winner subclass"),
    pytest.param({**CANONICAL, "selected_member_id": Trap()}, id="winner object"),
    pytest.param({**CANONICAL, "reason": "because"}, id="unknown reason"),
    pytest.param({**CANONICAL, "reason": SubStr("selected")}, id="reason subclass"),
    pytest.param({**CANONICAL, "reason": ["selected"]}, id="reason list"),
    pytest.param({**CANONICAL, "reason": "no-eligible-member"}, id="reason against rows"),
    pytest.param({**CANONICAL, "eligible_member_ids": ("a", "b")}, id="ids tuple"),
    pytest.param({**CANONICAL, "eligible_member_ids": SubList(["a", "b"])}, id="ids list subclass"),
    pytest.param({**CANONICAL, "eligible_member_ids": ["b", "a"]}, id="ids order"),
    pytest.param({**CANONICAL, "eligible_member_ids": ["a", "a"]}, id="ids repeated"),
    pytest.param({**CANONICAL, "eligible_member_ids": ["a", "c"]}, id="ids of others"),
    pytest.param({**CANONICAL, "eligible_member_ids": ["a", Trap()]}, id="ids object"),
    pytest.param({**CANONICAL, "eligible_member_ids": ["a"] * 17}, id="too many ids"),
    pytest.param({**CANONICAL, "scores": CANONICAL["scores"] * 9}, id="too many rows"),
    pytest.param({**CANONICAL, "scores": [Trap()] * 17}, id="too many objects"),
    pytest.param({**CANONICAL, "scores": [Trap(), Trap()]}, id="rows of objects"),
    pytest.param({**CANONICAL, "scores": CANONICAL["scores"][::-1]}, id="rows order"),
    pytest.param({**CANONICAL, "scores": CANONICAL["scores"][:1] * 2}, id="rows repeated"),
    pytest.param({**CANONICAL, "scores": tuple(CANONICAL["scores"])}, id="rows tuple"),
    pytest.param(_with_score(member_id="../b"), id="unsafe member"),
    pytest.param(_with_score(local_active=4), id="numerator at the ceiling"),
    pytest.param(_with_score(local_active=True), id="bool count"),
    pytest.param(_with_score(local_active=0.0), id="float count"),
    pytest.param(_with_score(local_capacity=0), id="no ceiling"),
    pytest.param(_with_score(freshness="FRESH"), id="unknown freshness"),
    pytest.param(_with_score(freshness=None), id="no freshness"),
    pytest.param(_with_score(freshness={}), id="freshness that can't be hashed"),
    pytest.param(_with_score(freshness="stale"), id="freshness against pressure"),
    pytest.param(_with_score(upstream_unknown=True), id="unknown against freshness"),
    pytest.param(_with_score(upstream_unknown=0), id="unknown that is no bool"),
    pytest.param(_with_score(upstream_pressure_ppm=None), id="fresh without pressure"),
    pytest.param(_with_score(upstream_pressure_ppm=2**53), id="pressure out of bounds"),
    pytest.param(_with_score(rotating_rank=16), id="rank out of bounds"),
    pytest.param(_with_score(rotating_rank=0), id="rank repeated"),
    pytest.param(_with_score(prompt="hello"), id="extra key in a row"),
    pytest.param(
        {**CANONICAL, "scores": [_without(CANONICAL["scores"][0], "freshness"), CANONICAL["scores"][1]]},
        id="missing key in a row",
    ),
    pytest.param(
        {**CANONICAL, "scores": [SubDict(CANONICAL["scores"][0]), CANONICAL["scores"][1]]},
        id="row dict subclass",
    ),
]


@pytest.mark.requirement("C-T005")
@pytest.mark.parametrize("raw", REFUSED)
def test_what_is_not_canonical_is_refused(raw: object) -> None:
    with pytest.raises(ValueError, match=r"\Ainvalid replica (score|decision)\Z"):
        decision_from_mapping(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.requirement("C-T005")
@given(st.sampled_from([*CANONICAL, *CANONICAL["scores"][0]]), json_values)
def test_any_other_value_anywhere_is_refused_or_canonical(key: str, value: object) -> None:
    raw = {**CANONICAL, key: value} if key in CANONICAL else _with_score(**{key: value})
    try:
        read = decision_from_mapping(raw)
    except ValueError:
        return
    assert decision_as_dict(read) == raw
