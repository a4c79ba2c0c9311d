"""What each key of the documents and each variable of the environment does, in a sentence.

The tables take names, bounds, defaults and error texts from the code; only these sentences are written here.
A key without one, or a sentence without its key, stops the generator.
"""

from typing import Final

CONFIG: Final[dict[str, dict[str, str]]] = {
    "server": {
        "auth_env": "The variable that holds the bootstrap token, which has every scope.",
        "decision_log_path": "A file for decision records, one JSON object a line, below the data directory.",
    },
    "router": {
        "exhaustion_status": "What callers get from a tier that is quiesced, not ready or full.",
        "connect_timeout": "Seconds for a new connection to an engine.",
        "first_byte_timeout": "Seconds from dispatch to the first byte of the answer's body.",
        "relay_timeout": "Seconds of silence between two bytes after that.",
        "availability_probe_interval": "Seconds between two readiness probes of one scope.",
        "availability_probe_timeout": "Seconds that one probe may take.",
        "availability_probe_max_bytes": "The largest model list that a probe reads.",
    },
    "model_route": {
        "alias": "The key: what callers send as `model`. Trimmed and lower-cased before it is compared.",
        "tier": "The value: the id of the one tier that serves the alias.",
    },
    "tier": {
        "id": "The tier's name everywhere: commands, metrics, decisions.",
        "base_url": "Of a direct tier: where its server answers, `/v1` included.",
        "description": "A sentence for people; `/v1/models` shows it.",
        "dialect": "What the upstream speaks.",
        "context_limit": "Tokens of context. A prompt that can't fit is refused before dispatch.",
        "privacy": "Where requests may go. There is only one place.",
        "tool_support": "Whether requests with tools are let through.",
        "auth_env": "The variable with the upstream's own token. Unset: none is sent, and a warning says so.",
        "model": "The name that the upstream serves the model under.",
        "health_path": "The path, from the root of the upstream, that a probe asks first.",
        "model_identity": "Whether a probe also wants `model` in the upstream's `/models`.",
        "metadata_source": "`upstream`: model name and context limit are what the one served model reports.",
        "replica_strategy": "Of a replica tier: how a member is chosen. Unset on one: `round_robin`.",
        "max_concurrency": "The tier's ceiling: requests at a time over all members together.",
        "max_output_tokens": "Lowers a larger output limit of a request, and stands in for a missing one.",
        "timeout": "This tier's `relay_timeout`.",
        "first_byte_timeout": "This tier's `first_byte_timeout`.",
        "wires": "What the upstream serves besides its dialect's own; that passes through untranslated.",
        "extra_body": "Merged into every upstream body; wins over the caller.",
        "extra_body_defaults": "Merged where the caller set nothing.",
        "engine": "A label for people. It decides nothing, not even how metrics are read.",
        "quantization": "A label for people.",
        "params": "Display metadata, and the media gate's policy: see below.",
    },
    "replica_identity": {
        "model_revision": "Declared, and shown as declared.",
        "engine_version": "Declared, and shown as declared.",
        "image_digest": "Declared, and shown as declared.",
        "config_fingerprint": "Declared, and shown as declared.",
    },
    "replica": {
        "id": "The member's name within its tier.",
        "base_url": "Where it answers, `/v1` included. Equal to its resource's endpoint in the topology.",
        "host_id": "Its host in the topology; the same for every member of the tier.",
        "resource_id": "Its resource in the topology; used by no other member.",
        "qualification_ref": "An opaque label of what qualified it. It proves nothing.",
        "max_concurrency": "Its ceiling, enforced under either strategy; required under `capacity`.",
    },
    "purpose_model": {
        "id": "Its name in metrics and decisions.",
        "kind": "Which endpoint serves it.",
        "model": "What callers send as `model`, exactly.",
        "base_url": "Where it answers, `/v1` included.",
        "auth_env": "The variable with the upstream's own token.",
        "timeout": "Seconds of silence, before the first byte too. Unset: the router's two timeouts.",
    },
    "audio_route": {
        "id": "Its name; callers may send it as `model`, too.",
        "purpose": "Which endpoint serves it.",
        "model": "What callers send as `model`, exactly.",
        "base_url": "Where it answers, `/v1` included.",
        "source_sample_rate": "In Hz, of a tts model's output; shown, and nothing else.",
        "default": "Whether it serves requests that name no model. One a purpose.",
        "auth_env": "The variable with the upstream's own token.",
        "timeout": "Seconds of silence, before the first byte too. Unset: the router's two timeouts.",
    },
}

PARAMS: Final[dict[str, dict[str, str]]] = {
    "capacity": {
        "gpu_role": "The part that its GPU plays.",
        "gpu_name": "What the GPU is called.",
        "gpu_memory_total_mib": "Its memory.",
        "kv_cache_capacity_tokens": "Tokens that the engine's KV cache holds.",
        "scheduler_max_num_seqs": "Requests that the engine itself runs at a time.",
        "model_memory_gib": "What the weights take.",
        "media_admission_enabled": "Turns the media gate on; the four numbers below are its policy then.",
        "image_limit": "Images in one request.",
        "video_limit": "Videos in one request.",
        "image_tokens_estimate": "Tokens that one image counts as.",
        "video_tokens_estimate": "Tokens that one video counts as.",
    },
    "capabilities": {
        "modalities": "Words for what it takes.",
        "thinking.supported": "Whether the model can think before it answers.",
        "thinking.default": "Whether it does when the caller says nothing.",
        "thinking.caller_override": "Whether the caller can say.",
        "thinking.max_tokens": "The most that it may think.",
        "compat.supportsUsageInStreaming": "Whether streams report usage.",
        "compat.supportsStrictMode": "Whether tools may be strict.",
        "compat.supportedReasoningEfforts": "Words that the engine takes as reasoning effort.",
    },
    "fingerprint": {
        "model_revision": "As `replica_identity`, for a direct tier.",
        "engine_version": "As `replica_identity`, for a direct tier.",
        "image_digest": "As `replica_identity`, for a direct tier.",
        "config_fingerprint": "As `replica_identity`, for a direct tier.",
    },
}

TOPOLOGY: Final[dict[str, dict[str, str]]] = {
    "topology": {
        "schema_version": "The version of this grammar.",
        "id": "A name for the whole.",
    },
    "host": {
        "id": "Its name.",
        "roles": "Words for what it does.",
        "address": "For people; nothing is resolved or connected to.",
        "os": "For people.",
    },
    "resource": {
        "id": "Its name; a member names it as `resource_id`.",
        "host": "The host it runs on.",
        "role": "A word for what it does.",
        "endpoint": "Where it answers. Without one it can't be a member.",
        "endpoint_kind": "For people.",
        "workload": "For people.",
        "gpu_role": "The GPU it uses, by the part that plays; on the same host.",
    },
    "gpu_role": {
        "id": "Its name.",
        "host": "The host that the GPU is in.",
        "uuid": "The GPU's own id.",
        "vram_mib": "Its memory.",
        "reserve_mib": "How much of it is kept free; at most `vram_mib`.",
    },
}

ENVIRONMENT: Final[dict[str, tuple[str, str]]] = {
    "ANVIL_DATA": (
        "`var` here",
        "The data directory: database, lock, secret key, decision log. Nothing is written outside it.",
    ),
    "ANVIL_BIND": (
        "127.0.0.1:8000",
        "Address to listen on. Under socket activation the socket unit's counts.",
    ),
    "ANVIL_CONFIG": ("-", "A configuration to install on the first start, when none is active yet."),
    "ANVIL_TOPOLOGY": ("-", "Its topology."),
    "ANVIL_TOPOLOGY_OVERLAY": ("-", "Its overlay."),
    "ANVIL_AUTH": ("on", "`off` lets everybody in; only on a loopback address, and only from the start."),
    "ANVIL_MAX_CONCURRENCY": ("512", "Requests in the data plane at once, 1 to 16,384; more get 503."),
    "ANVIL_MAX_BODY_BYTES": ("33554432", "The largest request body, 1 KiB to 1 GiB."),
    "ANVIL_BODY_BUDGET": (
        "536870912",
        "Bytes that all request bodies together may take, 1 KiB to 1 TiB. When they are taken, a body that "
        "has been incomplete for over 2 s makes room, the oldest first; else 503.",
    ),
    "ANVIL_BODY_SILENCE": (
        "30",
        "Seconds for which a request body may be silent, 0.1 to 3,600; then its caller gets 408.",
    ),
    "ANVIL_BODY_MIN_RATE": (
        "8192",
        "Bytes a second at which a request body has to come on average, 1 to 1,048,576; else 408.",
    ),
    "ANVIL_DECISION_RETENTION": (
        "100000",
        "Rows of the decision table, 1 to 100,000,000; the oldest go first.",
    ),
    "ANVIL_GRACEFUL_TIMEOUT": ("30", "Seconds that running requests get after SIGTERM."),
    "ANVIL_ALLOWED_HOSTS": ("loopback names", "Host names of the console, separated by commas."),
    "ANVIL_TRUSTED_ORIGINS": ("-", "Origins of the console behind a proxy: `https://anvil.example.com`."),
    "ANVIL_SECURE_COOKIES": (
        "by address",
        "Cookies over https alone. On for a public address or an https origin in `ANVIL_TRUSTED_ORIGINS`.",
    ),
    "ANVIL_SECRET_KEY": ("made once", "Django's secret key; else the data directory's own."),
    "ANVIL_LOG_LEVEL": ("INFO", "Level of Anvil's own log lines on standard error."),
    "ANVIL_DEBUG": ("false", "Django's debug pages. Not for a router that others reach."),
    "DATABASE_URL": ("SQLite in `ANVIL_DATA`", "PostgreSQL instead: `postgresql://user@127.0.0.1/anvil`."),
    "ANVIL_ADMIN_USER": ("asked for", "`anvil init`: name of the first user."),
    "ANVIL_ADMIN_PASSWORD": ("asked for", "`anvil init`: password of the first user."),
    "ANVIL_URL": ("`http://127.0.0.1:8000`", "Commands: where the router is."),
    "ANVIL_TOKEN": ("-", "Commands: the key. By `auth_env` of the examples also the bootstrap token."),
    "ANVIL_TRACEBACK": ("-", "Commands: `1` prints the traceback of an error."),
}
