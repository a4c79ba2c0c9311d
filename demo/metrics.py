"""The engine's ``/metrics`` page, in vLLM's names: gauges that follow its load, counters, two histograms."""

from collections.abc import Iterable
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0, 160.0)


class Histogram:
    """Counts of observed seconds per bucket."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        place = next((at for at, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))
        self._counts[place] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """The series of this histogram."""
        total = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum:.6f}"
        yield f"{name}_count{{{labels}}} {total}"


@dataclass(slots=True, kw_only=True)
class Metrics:
    """What is counted from start to end; the gauges are handed in when the page is rendered."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    stopped: int = 0
    aborted: int = 0
    first_token: Histogram = field(default_factory=Histogram)
    whole_request: Histogram = field(default_factory=Histogram)

    def render(self, *, model: str, running: int, waiting: int, kv_usage: float) -> bytes:
        """The page; ``kv_usage`` is a fraction of 1."""
        labels = f'engine="0",model_name="{model}"'
        simple: tuple[tuple[str, str, str, float], ...] = (
            ("num_requests_running", "gauge", "Number of requests in model execution batches.", running),
            ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", waiting),
            ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", kv_usage),
            ("num_preemptions_total", "counter", "Cumulative number of preemptions.", 0),
            ("prompt_tokens_total", "counter", "Prefill tokens processed.", self.prompt_tokens),
            ("generation_tokens_total", "counter", "Generation tokens processed.", self.generation_tokens),
            ("mm_cache_queries_total", "counter", "Multi-modal cache queries.", 0),
            ("mm_cache_hits_total", "counter", "Multi-modal cache hits.", 0),
        )
        lines = []
        for name, kind, text, value in simple:
            lines += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]
            lines.append(f"vllm:{name}{{{labels}}} {float(value)}")
        name = "vllm:request_success_total"
        lines += [f"# HELP {name} Count of successfully processed requests.", f"# TYPE {name} counter"]
        for reason, count in (("stop", self.stopped), ("abort", self.aborted)):
            lines.append(f'{name}{{{labels},finished_reason="{reason}"}} {float(count)}')
        for name, text, histogram in (
            ("vllm:time_to_first_token_seconds", "Time to first token in seconds.", self.first_token),
            (
                "vllm:e2e_request_latency_seconds",
                "End to end request latency in seconds.",
                self.whole_request,
            ),
        ):
            lines += [f"# HELP {name} Histogram of {text[0].lower()}{text[1:]}", f"# TYPE {name} histogram"]
            lines += histogram.lines(name, labels)
        return ("\n".join(lines) + "\n").encode()
