"""The demo engine's metrics page."""

from demo.metrics import Metrics


def test_the_page_has_vllms_gauges_counters_and_histograms() -> None:
    metrics = Metrics()
    metrics.prompt_tokens = 7
    metrics.first_token.observe(0.03)
    metrics.first_token.observe(500.0)
    lines = metrics.render(model="m", running=3, waiting=2, kv_usage=0.125).decode().splitlines()
    label = 'engine="0",model_name="m"'
    for line in (
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{label}}} 3.0",
        f"vllm:num_requests_waiting{{{label}}} 2.0",
        f"vllm:kv_cache_usage_perc{{{label}}} 0.125",
        "# TYPE vllm:prompt_tokens_total counter",
        f"vllm:prompt_tokens_total{{{label}}} 7.0",
        f'vllm:time_to_first_token_seconds_bucket{{{label},le="0.02"}} 0',
        f'vllm:time_to_first_token_seconds_bucket{{{label},le="0.04"}} 1',
        f'vllm:time_to_first_token_seconds_bucket{{{label},le="160.0"}} 1',
        f'vllm:time_to_first_token_seconds_bucket{{{label},le="+Inf"}} 2',
        f"vllm:time_to_first_token_seconds_sum{{{label}}} 500.030000",
        f"vllm:time_to_first_token_seconds_count{{{label}}} 2",
    ):
        assert line in lines
