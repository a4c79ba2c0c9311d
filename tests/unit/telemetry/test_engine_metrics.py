"""Pages of every engine family, written by hand from the engines' documentation, and pages that are wrong."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import engine_metrics
from telemetry.engine_metrics import (
    MAX_COUNT,
    MAX_PAGE_BYTES,
    EngineFamily,
    MetricsSnapshot,
    MetricsStatus,
    parse_engine_metrics,
)

PAGES = Path(__file__).parent / "pages"

pytestmark = pytest.mark.requirement("C-R006", "C-T003", "contract 3")


def read(*lines: str) -> MetricsSnapshot:
    return parse_engine_metrics("\n".join(lines).encode() + b"\n")


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (
            "vllm",
            MetricsSnapshot(
                status=MetricsStatus.OK,
                family=EngineFamily.VLLM,
                requests_running=5,
                requests_waiting=2,
                kv_cache_usage_fraction=0.40625,
                preemptions_total=3,
                multimodal_cache_queries_total=24,
                multimodal_cache_hits_total=9,
            ),
        ),
        (
            "vllm_ranks",
            MetricsSnapshot(
                status=MetricsStatus.OK,
                family=EngineFamily.VLLM,
                requests_running=13,
                requests_waiting=4,
                kv_cache_usage_fraction=0.75,
                preemptions_total=12,
            ),
        ),
        (
            "vllm_v0",
            MetricsSnapshot(
                status=MetricsStatus.OK,
                family=EngineFamily.VLLM,
                requests_running=3,
                requests_waiting=1,
                kv_cache_usage_fraction=0.0625,
                preemptions_total=0,
            ),
        ),
        (
            "vllm_both_kv_names",
            MetricsSnapshot(
                status=MetricsStatus.OK,
                family=EngineFamily.VLLM,
                requests_running=1,
                requests_waiting=0,
                kv_cache_usage_fraction=0.25,
            ),
        ),
        (
            "sglang",
            MetricsSnapshot(
                status=MetricsStatus.OK,
                family=EngineFamily.SGLANG,
                requests_running=162,
                requests_waiting=2826,
                kv_cache_usage_fraction=0.28,
            ),
        ),
        (
            "sglang_ranks",
            MetricsSnapshot(
                status=MetricsStatus.OK,
                family=EngineFamily.SGLANG,
                requests_running=21,
                requests_waiting=5,
                kv_cache_usage_fraction=0.83,
            ),
        ),
        (
            "sglang_pipeline_priorities",
            MetricsSnapshot(
                status=MetricsStatus.OK,
                family=EngineFamily.SGLANG,
                requests_running=6,
                requests_waiting=3,
                kv_cache_usage_fraction=0.47,
            ),
        ),
        (
            "llamacpp",
            MetricsSnapshot(
                status=MetricsStatus.OK,
                family=EngineFamily.LLAMACPP,
                requests_running=2,
                requests_waiting=1,
                kv_cache_usage_fraction=0.15625,
            ),
        ),
        (
            "llamacpp_without_kv",
            MetricsSnapshot(
                status=MetricsStatus.OK,
                family=EngineFamily.LLAMACPP,
                requests_running=0,
                requests_waiting=0,
                kv_cache_usage_fraction=None,
            ),
        ),
        (
            "tgi",
            MetricsSnapshot(
                status=MetricsStatus.OK,
                family=EngineFamily.TGI,
                requests_running=8,
                requests_waiting=12,
            ),
        ),
    ],
)
def test_a_page_of_each_engine_gives_its_numbers(page: str, expected: MetricsSnapshot) -> None:
    assert parse_engine_metrics((PAGES / f"{page}.txt").read_bytes()) == expected


@pytest.mark.parametrize("page", sorted(path.stem for path in PAGES.glob("*.txt")))
def test_line_ends_of_other_systems_and_a_missing_last_one_change_nothing(page: str) -> None:
    text = (PAGES / f"{page}.txt").read_bytes()
    assert parse_engine_metrics(text.replace(b"\n", b"\r\n")) == parse_engine_metrics(text)
    assert parse_engine_metrics(text.rstrip(b"\n")) == parse_engine_metrics(text)


def test_a_missing_series_is_missing_and_never_zero() -> None:
    """Case 9 of the trackers: the engine renamed its KV metric."""
    snapshot = read("vllm:num_requests_running 3", "vllm:kv_cache_use_ratio 0.5")
    assert snapshot.requests_running == 3
    assert snapshot.requests_waiting is None
    assert snapshot.kv_cache_usage_fraction is None
    assert snapshot.unreadable == frozenset()


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\n\n",
        b"# HELP vllm:num_requests_running Number of requests.\n# TYPE vllm:num_requests_running gauge\n",
        b'vllm:num_requests_waiting_by_reason{reason="capacity"} 3\n',
        b'my_vllm:num_requests_running{engine="0"} 3\n',
        b'exporter_series_total{name="vllm:num_requests_running "} 1\n',
        b"VLLM:NUM_REQUESTS_RUNNING 3\n",
        b"vllm:num_requests_running",
        b"<html>404</html>",
        b"\xff\xfe\x00" * 100,
    ],
)
def test_a_page_without_a_known_series_is_missing(page: bytes) -> None:
    assert parse_engine_metrics(page) == MetricsSnapshot(status=MetricsStatus.MISSING)


def test_the_first_family_of_the_table_on_the_page_is_taken() -> None:
    snapshot = read("tgi_queue_size 9", "sglang:num_queue_reqs 4")
    assert (snapshot.family, snapshot.requests_waiting) == (EngineFamily.SGLANG, 4)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("3", 3),
        ("3.0", 3),
        ("0", 0),
        ("-0.0", 0),
        ("1e3", 1000),
        ("2.5E+1", 25),
        ("1000000000", 1_000_000_000),
        ("9007199254740991", MAX_COUNT),
        ("7 1756548393000", 7),
    ],
)
def test_counts_in_every_notation_that_the_format_has(text: str, count: int) -> None:
    snapshot = read(f"vllm:num_requests_running {text}")
    assert snapshot.requests_running == count
    assert type(snapshot.requests_running) is int
    assert snapshot.unreadable == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "nan",
        "+Inf",
        "-Inf",
        "Inf",
        "-1",
        "-0.5",
        "0.5",
        "1e-3",
        "9007199254740992",
        "1e300",
        "9" * 400,
    ],
)
def test_a_count_that_is_no_count_is_unreadable(text: str) -> None:
    snapshot = read(f"vllm:num_requests_running {text}", "vllm:num_requests_waiting 2")
    assert snapshot.status is MetricsStatus.OK
    assert snapshot.requests_running is None
    assert snapshot.requests_waiting == 2
    assert snapshot.unreadable == frozenset({"requests_running"})


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "-0.01", "1.0001", "2e0", "40.5", "9" * 400])
def test_a_fraction_outside_zero_to_one_is_unreadable(text: str) -> None:
    snapshot = read(f"vllm:kv_cache_usage_perc {text}")
    assert snapshot.kv_cache_usage_fraction is None
    assert snapshot.unreadable == frozenset({"kv_cache_usage_fraction"})


@pytest.mark.parametrize(("text", "fraction"), [("0", 0.0), ("1", 1.0), ("1.0", 1.0), ("4.0625e-1", 0.40625)])
def test_fractions_at_their_bounds(text: str, fraction: float) -> None:
    assert read(f"vllm:kv_cache_usage_perc {text}").kv_cache_usage_fraction == fraction


def test_one_unreadable_rank_makes_the_field_unreadable() -> None:
    """A negative rank must not lower the sum, nor NaN get lost in a maximum."""
    snapshot = read(
        'vllm:num_requests_running{engine="0"} 5',
        'vllm:num_requests_running{engine="1"} -1',
        'vllm:kv_cache_usage_perc{engine="0"} 0.5',
        'vllm:kv_cache_usage_perc{engine="1"} NaN',
    )
    assert snapshot.requests_running is None
    assert snapshot.kv_cache_usage_fraction is None
    assert snapshot.unreadable == frozenset({"requests_running", "kv_cache_usage_fraction"})


def test_ranks_that_add_up_past_the_bound_are_unreadable() -> None:
    snapshot = read(
        f'vllm:num_requests_running{{engine="0"}} {MAX_COUNT}', 'vllm:num_requests_running{engine="1"} 1'
    )
    assert snapshot.unreadable == frozenset({"requests_running"})


def test_the_same_series_twice_is_unreadable() -> None:
    snapshot = read('vllm:num_requests_running{engine="0"} 5', 'vllm:num_requests_running{engine="0"} 5')
    assert snapshot.unreadable == frozenset({"requests_running"})


def test_an_unreadable_new_name_is_not_replaced_by_the_old_one() -> None:
    snapshot = read("vllm:kv_cache_usage_perc NaN", "vllm:gpu_cache_usage_perc 0.1")
    assert snapshot.unreadable == frozenset({"kv_cache_usage_fraction"})


def test_priorities_without_a_total_add_up() -> None:
    snapshot = read('sglang:num_queue_reqs{priority="1"} 2', 'sglang:num_queue_reqs{priority="5"} 3')
    assert snapshot.requests_waiting == 5


def test_several_models_of_one_engine_share_its_slots() -> None:
    snapshot = read(
        'vllm:num_requests_running{model_name="base"} 2', 'vllm:num_requests_running{model_name="adapter"} 1'
    )
    assert snapshot.requests_running == 3


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running ",
        "vllm:num_requests_running many",
        "vllm:num_requests_running 0x10",
        "vllm:num_requests_running 1_000",
        "vllm:num_requests_running 3,5",
        'vllm:num_requests_running{engine="0} 3',
        "vllm:num_requests_running{engine=0} 3",
        'vllm:num_requests_running{engine="0",engine="1"} 3',
        'vllm:num_requests_running{engine="0",,} 3',
        'vllm:num_requests_running{engine="0"',
        'vllm:num_requests_running{engine="0"}',
        "vllm:num_requests_running{ 3",
    ],
)
def test_a_wanted_line_that_is_no_sample_makes_the_page_invalid(line: str) -> None:
    assert read("vllm:num_requests_waiting 1", line) == MetricsSnapshot(status=MetricsStatus.INVALID)


def test_a_wanted_line_that_is_not_utf8_makes_the_page_invalid() -> None:
    page = b'vllm:num_requests_running{model_name="\xff\xfe"} 3\n'
    assert parse_engine_metrics(page) == MetricsSnapshot(status=MetricsStatus.INVALID)


def test_lines_of_other_series_are_never_parsed() -> None:
    snapshot = parse_engine_metrics(b'{{{"\xff\nvllm:num_requests_running 3\nvllm:broken{ x\n')
    assert snapshot.requests_running == 3


def test_blanks_around_a_line_are_ignored() -> None:
    assert read("", "   vllm:num_requests_running\t 3  ").requests_running == 3


def test_a_page_of_the_bound_is_read_and_one_byte_more_is_oversized() -> None:
    """Collector contract: 1 MiB plus one."""
    line = b"vllm:num_requests_running 3\n"
    page = line + b"#" * (MAX_PAGE_BYTES - len(line))
    assert len(page) == 1_048_576
    assert parse_engine_metrics(page).requests_running == 3
    assert parse_engine_metrics(page + b"#") == MetricsSnapshot(status=MetricsStatus.OVERSIZED)


@pytest.mark.parametrize(
    "page",
    [
        b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % rank for rank in range(2_000)),
        b'vllm:num_requests_running{model_name="%s"} 1\n' % (b"m" * 2_048),
        b'vllm:num_requests_waiting_by_reason{reason="capacity"} 1\n' * 5_000
        + b"vllm:num_requests_running 1\n",
    ],
    ids=["ranks", "line", "mentions"],
)
def test_what_the_parser_is_given_is_bounded(page: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_metrics, "_parse", lambda lines: pytest.fail("the parser was reached"))
    assert parse_engine_metrics(page) == MetricsSnapshot(status=MetricsStatus.INVALID)


def test_the_parser_sees_the_wanted_lines_of_a_large_page_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    parse = engine_metrics.text_string_to_metric_families

    def spy(text: str) -> object:
        seen.append(text)
        return parse(text)

    monkeypatch.setattr(engine_metrics, "text_string_to_metric_families", spy)
    filler = b'vllm:request_prompt_tokens_bucket{engine="0",le="1024"} 7\n' * 10_000
    page = filler + b"vllm:num_requests_running 3\n" + filler[:-1] + b"\nvllm:num_requests_waiting 1"
    assert parse_engine_metrics(page[-MAX_PAGE_BYTES:]).requests_running == 3
    assert seen == ["vllm:num_requests_running 3\nvllm:num_requests_waiting 1"]


def test_a_snapshot_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        read("tgi_queue_size 1").requests_waiting = 0  # type: ignore[misc]


_LINE_START = st.sampled_from(
    ["vllm:num_requests_running", "vllm:kv_cache_usage_perc", "sglang:num_queue_reqs", "tgi_queue_size", "x"]
)
_LINE_END = st.text(alphabet='{}="\\, \t#0123456789.eE+-_NaIinfn\u0661\x00\x85abc\r', max_size=40)


@given(st.lists(st.tuples(_LINE_START, _LINE_END), max_size=6))
def test_no_page_makes_it_raise_or_leave_its_bounds(lines: list[tuple[str, str]]) -> None:
    snapshot = read(*(start + end for start, end in lines))
    for value in (
        snapshot.requests_running,
        snapshot.requests_waiting,
        snapshot.preemptions_total,
        snapshot.multimodal_cache_queries_total,
        snapshot.multimodal_cache_hits_total,
    ):
        assert value is None or (type(value) is int and 0 <= value <= MAX_COUNT)
    fraction = snapshot.kv_cache_usage_fraction
    assert fraction is None or (type(fraction) is float and 0 <= fraction <= 1)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(page: bytes) -> None:
    parse_engine_metrics(page)
    parse_engine_metrics(b"vllm:num_requests_running " + page)
