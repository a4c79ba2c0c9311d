"""The pressure normaliser: exact ceilings, signal states, the freshness boundary; and whole snapshots."""

from dataclasses import FrozenInstanceError
from fractions import Fraction
from math import ceil, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.replica_scheduler import (
    PressureFreshness,
    PressureSignalState,
    ReplicaPressure,
    ValidatedPressure,
    ValidatedReadiness,
    normalize_replica_pressure,
)

FRESH, STALE, FAILED, UNKNOWN = PressureFreshness
VALID, MISSING, INVALID = PressureSignalState


def normalize(**changes: object) -> ReplicaPressure:
    """A sound sample of an idle engine with 2 slots, no KV series, taken this instant."""
    sample: dict[str, object] = {
        "observed_at": 10.0,
        "now_monotonic": 10.0,
        "successful": True,
        "requests_running": 0,
        "requests_waiting": 0,
        "scheduler_capacity": 2,
    }
    return normalize_replica_pressure(**{**sample, **changes})  # type: ignore[arg-type]


def kv_only(fraction: object) -> ReplicaPressure:
    return normalize(
        requests_running=None,
        requests_waiting=None,
        scheduler_capacity=None,
        kv_cache_usage_fraction=fraction,
    )


@pytest.mark.requirement("C-R006", "C-T002")
@pytest.mark.parametrize(
    ("changes", "ppm", "requests", "kv"),
    [
        ({}, 0, VALID, MISSING),
        ({"requests_running": 1}, 500_000, VALID, MISSING),
        ({"requests_running": 1, "scheduler_capacity": 3}, 333_334, VALID, MISSING),
        ({"requests_running": 2, "scheduler_capacity": 3}, 666_667, VALID, MISSING),
        ({"requests_running": 1, "scheduler_capacity": 100_000}, 10, VALID, MISSING),
        ({"requests_running": 1, "requests_waiting": 2}, 1_500_000, VALID, MISSING),
        ({"requests_running": 1.0, "requests_waiting": 2.0}, 1_500_000, VALID, MISSING),
        ({"requests_running": -0.0}, 0, VALID, MISSING),
        (
            {"requests_running": 10**9, "requests_waiting": 10**9, "scheduler_capacity": 1},
            2_000_000_000_000_000,
            VALID,
            MISSING,
        ),
        ({"requests_running": 1, "kv_cache_usage_fraction": 0.25}, 500_000, VALID, VALID),
        ({"requests_running": 1, "kv_cache_usage_fraction": 0.75}, 750_000, VALID, VALID),
        ({"requests_running": None, "kv_cache_usage_fraction": 0.25}, 250_000, MISSING, VALID),
        ({"requests_waiting": None, "kv_cache_usage_fraction": 0.25}, 250_000, MISSING, VALID),
        ({"scheduler_capacity": None, "kv_cache_usage_fraction": 0.25}, 250_000, MISSING, VALID),
    ],
)
def test_fresh_pressure(
    changes: dict[str, object], ppm: int, requests: PressureSignalState, kv: PressureSignalState
) -> None:
    assert normalize(**changes) == ReplicaPressure(FRESH, ppm, requests, kv)


@pytest.mark.requirement("C-T002")
@pytest.mark.parametrize(
    ("fraction", "ppm"),
    [
        (0, 0),
        (1, 1_000_000),
        (0.0, 0),
        (-0.0, 0),
        (1.0, 1_000_000),
        (0.5, 500_000),
        (5e-324, 1),
        (1e-9, 1),
        (1e-6, 1),
        (0.29, 290_000),
        (0.1, 100_000),  # its float lies above 1/10, and the product is 100000 all the same
        (0.2, 200_000),
        (0.3, 300_000),
        (0.55, 550_000),
        (0.9, 900_000),
        (0.9999999, 1_000_000),
        (1.0 - 2**-53, 1_000_000),
        (0.000001000001, 2),
    ],
)
def test_kv_pressure_is_the_ceiling_of_the_product(fraction: float, ppm: int) -> None:
    assert kv_only(fraction) == ReplicaPressure(FRESH, ppm, MISSING, VALID)


@pytest.mark.requirement("C-T002")
@given(st.floats(0, 1))
def test_kv_pressure_agrees_with_rational_arithmetic_to_one_part(fraction: float) -> None:
    pressure = kv_only(fraction).pressure_ppm
    assert pressure is not None
    assert abs(pressure - ceil(Fraction(fraction) * 1_000_000)) <= 1


@pytest.mark.requirement("C-T002")
@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 100_000))
def test_request_pressure_agrees_with_rational_arithmetic(running: int, waiting: int, slots: int) -> None:
    pressure = normalize(requests_running=running, requests_waiting=waiting, scheduler_capacity=slots)
    assert pressure.pressure_ppm == ceil(Fraction((running + waiting) * 1_000_000, slots))
    assert pressure.pressure_ppm < 2**53


REQUEST_FIELDS = ("requests_running", "requests_waiting", "scheduler_capacity")


@pytest.mark.requirement("C-R007", "C-T002", "case 9")
@pytest.mark.parametrize("field", REQUEST_FIELDS)
def test_an_incomplete_request_triple_is_missing_never_zero(field: str) -> None:
    assert normalize(**{field: None}) == ReplicaPressure(UNKNOWN, None, MISSING, MISSING)


@pytest.mark.requirement("C-T002")
def test_nothing_supplied_is_missing() -> None:
    assert kv_only(None) == ReplicaPressure(UNKNOWN, None, MISSING, MISSING)


MALFORMED = [True, False, -1, -0.5, nan, inf, -inf, "0", b"0", [], {}, object(), 10**1000]


@pytest.mark.requirement("C-R007", "C-T002")
@pytest.mark.parametrize("value", MALFORMED)
@pytest.mark.parametrize("field", REQUEST_FIELDS)
def test_one_malformed_request_value_makes_the_pressure_unknown(field: str, value: object) -> None:
    assert normalize(**{field: value}) == ReplicaPressure(UNKNOWN, None, INVALID, MISSING)
    # A valid KV signal beside it does not help, and missing values do not hide it.
    changes: dict[str, object] = {
        **dict.fromkeys(REQUEST_FIELDS),
        field: value,
        "kv_cache_usage_fraction": 0.5,
    }
    assert normalize(**changes) == ReplicaPressure(UNKNOWN, None, INVALID, VALID)


@pytest.mark.requirement("C-T002")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests_running", 0.5),
        ("requests_running", 1_000_000_001),
        ("requests_waiting", 1_000_000_001.0),
        ("requests_waiting", 1.5),
        ("scheduler_capacity", 0),
        ("scheduler_capacity", 100_001),
        ("scheduler_capacity", 2.0),
    ],
)
def test_request_values_out_of_bounds(field: str, value: object) -> None:
    assert normalize(**{field: value}) == ReplicaPressure(UNKNOWN, None, INVALID, MISSING)


@pytest.mark.requirement("C-T002")
@pytest.mark.parametrize("value", [*MALFORMED, 1.0000001, 2])
def test_a_malformed_kv_value_makes_the_pressure_unknown(value: object) -> None:
    assert normalize(kv_cache_usage_fraction=value) == ReplicaPressure(UNKNOWN, None, VALID, INVALID)


@pytest.mark.requirement("C-T002")
def test_subclasses_of_numbers_are_no_telemetry() -> None:
    class Float(float):
        pass

    class Int(int):
        pass

    assert normalize(kv_cache_usage_fraction=Float(0.5)).kv_state is INVALID
    assert normalize(requests_running=Int(1)).requests_state is INVALID
    assert normalize(scheduler_capacity=Int(1)).requests_state is INVALID
    assert normalize(observed_at=Float(10)).freshness is UNKNOWN


@pytest.mark.requirement("C-R007", "C-T002", "case 8")
@pytest.mark.parametrize(
    ("changes", "freshness"),
    [
        ({"now_monotonic": 10}, FRESH),
        ({"now_monotonic": 15}, FRESH),
        ({"now_monotonic": 15.0}, FRESH),
        ({"observed_at": 0, "now_monotonic": 5}, FRESH),
        ({"now_monotonic": 15.000001}, STALE),
        ({"observed_at": 0, "now_monotonic": 5.000000000000001}, STALE),
        ({"now_monotonic": 1e300}, STALE),
        ({"now_monotonic": 9.999999}, UNKNOWN),
        ({"observed_at": 11}, UNKNOWN),
        ({"observed_at": -1.0}, UNKNOWN),
        ({"observed_at": -5, "now_monotonic": -5}, UNKNOWN),
        ({"observed_at": nan}, UNKNOWN),
        ({"now_monotonic": nan}, UNKNOWN),
        ({"now_monotonic": inf}, UNKNOWN),
        ({"now_monotonic": 10**1000}, UNKNOWN),
        ({"observed_at": None}, UNKNOWN),
        ({"observed_at": "10"}, UNKNOWN),
        ({"observed_at": True}, UNKNOWN),
        ({"successful": 1}, UNKNOWN),
        ({"successful": None}, UNKNOWN),
        ({"successful": "true"}, UNKNOWN),
        ({"successful": False}, FAILED),
    ],
)
def test_freshness(changes: dict[str, object], freshness: PressureFreshness) -> None:
    pressure = normalize(requests_running=1, **changes)
    assert pressure == ReplicaPressure(freshness, 500_000 if freshness is FRESH else None, VALID, MISSING)


@pytest.mark.requirement("C-T002")
def test_a_failed_sample_is_failed_whatever_else_it_says() -> None:
    assert normalize(successful=False, observed_at=None) == ReplicaPressure(FAILED, None, VALID, MISSING)
    assert normalize(successful=False, requests_running="x").freshness is FAILED
    assert kv_only(None).freshness is UNKNOWN
    failed = normalize_replica_pressure(observed_at=1, now_monotonic=9, successful=False)
    assert failed == ReplicaPressure(FAILED, None, MISSING, MISSING)


@pytest.mark.requirement("C-T002")
def test_an_old_sample_without_a_valid_signal_is_unknown_not_stale() -> None:
    assert normalize(now_monotonic=100, requests_running=None).freshness is UNKNOWN
    assert normalize(now_monotonic=100, kv_cache_usage_fraction="x").freshness is UNKNOWN


@pytest.mark.requirement("C-T002")
def test_no_raw_value_is_kept() -> None:
    assert "prompt text" not in repr(normalize(requests_running="prompt text"))


# Snapshots that are checked when they are made ---------------------------------------------------------


@pytest.mark.requirement("C-T002")
def test_validated_snapshots_read_as_mappings() -> None:
    readiness = ValidatedReadiness({"b": True, "a": False})
    assert readiness.member_ids == ("a", "b")
    assert dict(readiness) == {"a": False, "b": True}
    assert len(readiness) == 2
    assert readiness == {"a": False, "b": True}
    pressure = ValidatedPressure({"b": ReplicaPressure(FRESH, 7, VALID, VALID), "a": ReplicaPressure()})
    assert pressure["b"] == ReplicaPressure(FRESH, 7, VALID, VALID)
    assert list(pressure) == ["a", "b"]
    assert len(pressure) == 2
    for snapshot in (readiness, pressure):
        with pytest.raises(KeyError):
            snapshot["c"]
        with pytest.raises(FrozenInstanceError):
            snapshot.member_ids = ("a", "c")  # type: ignore[misc]


@pytest.mark.requirement("C-T002")
def test_validated_snapshots_do_not_follow_their_source() -> None:
    flags = {"a": True, "b": True}
    pressures = {"a": ReplicaPressure(), "b": ReplicaPressure()}
    readiness, pressure = ValidatedReadiness(flags), ValidatedPressure(pressures)
    flags["a"] = False
    pressures["a"] = ReplicaPressure(FAILED)
    assert readiness["a"] is True
    assert pressure["a"] == ReplicaPressure()


class SubDict(dict):  # type: ignore[type-arg]
    pass


class SubStr(str):
    __slots__ = ()


@pytest.mark.requirement("C-T002")
@pytest.mark.parametrize(
    "values",
    [
        None,
        {},
        {"a": True},
        {f"m{index}": True for index in range(17)},
        {"a": True, "b": 1},
        {"a": True, "b": None},
        {"a": True, "b c": True},
        {"a": True, 2: True},
        {"a": True, SubStr("b"): True},
        SubDict({"a": True, "b": True}),
        [("a", True), ("b", True)],
    ],
)
def test_readiness_that_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match=r"\Ainvalid replica readiness\Z"):
        ValidatedReadiness(values)  # type: ignore[arg-type]


@pytest.mark.requirement("C-T002")
@pytest.mark.parametrize(
    "values",
    [
        None,
        {"a": ReplicaPressure()},
        {"a": ReplicaPressure(), "b": None},
        {"a": ReplicaPressure(), "b": 0},
        {"a": ReplicaPressure(), "b": object.__new__(ReplicaPressure)},
        SubDict({"a": ReplicaPressure(), "b": ReplicaPressure()}),
    ],
)
def test_pressure_that_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match=r"\Ainvalid replica pressure\Z"):
        ValidatedPressure(values)  # type: ignore[arg-type]
