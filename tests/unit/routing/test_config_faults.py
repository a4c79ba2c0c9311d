"""One fault per invariant, word for word (Q-R001 to Q-R006, Q-T002, C-T001, contract 1)."""

import datetime
from pathlib import Path

import pytest

from routing.config import ConfigError, check_field, normalise_url, parse_config, table_faults
from tests import corpus

Edit = tuple[str, str]

DIRECT = corpus.read("config/valid/direct.toml").decode()
PAIR = corpus.read("config/valid/round-robin.toml").decode()
FULL = corpus.read("config/valid/full.toml").decode()
CAPACITY = PAIR.replace(
    "model_identity = true", 'model_identity = true\nreplica_strategy = "capacity"'
).replace("run-7", 'run-7"\nmax_concurrency = 8 # "')

UNROUTED = DIRECT[DIRECT.index("[[router.tiers]]") :]

SAFE_ID = "must be a letter and up to 63 more letters, digits, _ or -"
PLAIN_NAME = (
    "must be 1 to 64 letters, digits, blanks, _ . + or -, the first a letter or digit, and no address"
)
LABEL = "must be 1 to 128 letters, digits, _ . + or -, the first a letter or digit"
REFERENCE = "must be 1 to 128 letters, digits, _ . : or -, the first a letter or digit"
DIGEST = "must be sha256: and 64 lower-case hex digits"
ENVIRONMENT = "must be the name of an environment variable (A-Z, 0-9 and _), never a secret itself"
URL = "must be an http or https URL with a host and without user, query or fragment"
URL_PATH = "must be a path from / on (256 characters), without scheme, query, fragment, .. or escape"
SECONDS = "must be a number over 0 and at most 3600"
CEILING = "must be an integer from 1 to 100000"
ALIAS = (
    "must be 1 to 128 letters, digits, . _ : / or -, the first a letter or digit, "
    "and none of capacity, capabilities, fingerprints"
)


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        parse_config(text.encode())
    assert str(refused.value) == "\n".join(str(fault) for fault in refused.value.faults)
    return [str(fault) for fault in refused.value.faults]


def edited(text: str, *edits: Edit) -> str:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def test_the_documents_that_are_edited_below_are_valid() -> None:
    for text in (DIRECT, PAIR, FULL, CAPACITY):
        parse_config(text.encode())


# --- Both kinds of tier, and everything around them ---

ONE_FAULT: dict[str, tuple[str, Edit, str]] = {
    # Every level is closed.
    "unknown key at the top": (
        DIRECT,
        ("[router.model", "[extra]\n[router.model"),
        "extra: is not a known key",
    ),
    "unknown key in server": (
        DIRECT,
        ("[router.model", "[server]\nport = 1\n[router.model"),
        "server.port: is not a known key",
    ),
    "unknown key in router": (
        DIRECT,
        ("[router.model", "[router]\nretries = 1\n[router.model"),
        "router.retries: is not a known key",
    ),
    "unknown key in a tier": (
        DIRECT,
        ("id =", "fallback = 1\nid ="),
        "router.tiers[0].fallback: is not a known key",
    ),
    "unknown key in a member": (
        PAIR,
        ('id = "member-b"', 'id = "member-b"\nweight = 2'),
        "router.tiers[0].replicas[1].weight: is not a known key",
    ),
    "semantic policy on a member": (
        PAIR,
        ('id = "member-b"', 'id = "member-b"\ncontext_limit = 2'),
        "router.tiers[0].replicas[1].context_limit: is not a known key",
    ),
    "unknown identity key": (
        PAIR,
        ("engine_version =", 'dtype = "fp8"\nengine_version ='),
        "router.tiers[0].replica_identity.dtype: is not a known key",
    ),
    "unknown key in params": (
        DIRECT,
        ("id =", "params = { other = {} }\nid ="),
        "router.tiers[0].params.other: is not a known key",
    ),
    "unknown key in params.capacity": (
        FULL,
        ("gpu_name", "gpu_maker"),
        "router.tiers[0].params.capacity.gpu_maker: is not a known key",
    ),
    "unknown key in params.capabilities": (
        FULL,
        ("modalities", "senses"),
        "router.tiers[0].params.capabilities.senses: is not a known key",
    ),
    "unknown key in params.capabilities.compat": (
        FULL,
        ("supportsStrictMode", "supports_strict_mode"),
        "router.tiers[0].params.capabilities.compat.supports_strict_mode: is not a known key",
    ),
    "unknown key in a purpose model": (
        FULL,
        ('kind = "rerank"', 'kind = "rerank"\ndimensions = 3'),
        "router.purpose_models[1].dimensions: is not a known key",
    ),
    "unknown key in an audio route": (
        FULL,
        ('purpose = "stt"', 'purpose = "stt"\nvoice = "x"'),
        "router.audio_routes[0].voice: is not a known key",
    ),
    # A key that needs quotes, is long, or may hold a secret.
    "unknown key with dots": (
        DIRECT,
        ("id =", '"a.b" = 1\nid ='),
        'router.tiers[0]."a.b": is not a known key',
    ),
    "unknown key with a line break": (
        DIRECT,
        ("id =", '"a\\nb" = 1\nid ='),
        'router.tiers[0]."a\\nb": is not a known key',
    ),
    "unknown long key": (
        DIRECT,
        ("id =", f'"{"k" * 500}" = 1\nid ='),
        f'router.tiers[0]."{"k" * 64}": is not a known key',
    ),
    "unknown key shaped like a secret": (
        DIRECT,
        ("id =", "sk-live-1 = 1\nid ="),
        "router.tiers[0].<hidden>: is not a known key",
    ),
    # Tables.
    "no router": (DIRECT, (DIRECT, ""), "router: is required"),
    "router is no table": (DIRECT, (DIRECT, "router = 3"), "router: must be a table"),
    "no tiers": (DIRECT, (DIRECT, "[router]"), "router.tiers: is required"),
    "empty tiers": (DIRECT, (DIRECT, "router.tiers = []"), "router.tiers: must hold at least one tier"),
    "tiers is a table": (DIRECT, (DIRECT, "[router.tiers]"), "router.tiers: must be an array of tables"),
    "a tier is no table": (DIRECT, (DIRECT, "router.tiers = [3]"), "router.tiers[0]: must be a table"),
    "server is no table": (
        DIRECT,
        ("[router.model", 'server = "x"\n[router.model'),
        "server: must be a table",
    ),
    "routes are no table": (
        DIRECT,
        ('[router.model_routes]\n"llm.primary" = "primary"', "[router]\nmodel_routes = []"),
        "router.model_routes: must be a table",
    ),
    # Server and router.
    "secret-shaped auth_env": (
        FULL,
        ('"ANVIL_TOKEN"', '"sk-live-0123456789abcdef"'),
        f"server.auth_env: {ENVIRONMENT}",
    ),
    "secret in capitals as auth_env": (
        FULL,
        ('"ANVIL_TOKEN"', '"AKIAIOSFODNN7EXAMPLE"'),
        f"server.auth_env: {ENVIRONMENT}",
    ),
    "empty auth_env": (FULL, ('"ANVIL_TOKEN"', '""'), f"server.auth_env: {ENVIRONMENT}"),
    "auth_env is no string": (FULL, ('"ANVIL_TOKEN"', "true"), f"server.auth_env: {ENVIRONMENT}"),
    "empty decision_log_path": (
        FULL,
        ('"decisions.jsonl"', '""'),
        "server.decision_log_path: must be 1 to 1024 printable characters without white space around them",
    ),
    "exhaustion_status": (
        FULL,
        ("529", "500"),
        "router.exhaustion_status: must be 429 or 503 or 529, not 500",
    ),
    "exhaustion_status as float": (
        FULL,
        ("529", "503.0"),
        "router.exhaustion_status: must be 429 or 503 or 529, not 503.0",
    ),
    "zero timeout": (
        FULL,
        ("connect_timeout = 1.5", "connect_timeout = 0"),
        f"router.connect_timeout: {SECONDS}, not 0",
    ),
    "negative timeout": (FULL, ("= 300\n", "= -1.5\n"), f"router.first_byte_timeout: {SECONDS}, not -1.5"),
    "timeout over an hour": (FULL, ("= 45.0", "= 3600.5"), f"router.relay_timeout: {SECONDS}, not 3600.5"),
    "timeout nan": (FULL, ("= 45.0", "= nan"), f"router.relay_timeout: {SECONDS}, not nan"),
    "timeout inf": (FULL, ("= 45.0", "= inf"), f"router.relay_timeout: {SECONDS}, not inf"),
    "timeout beyond floats": (FULL, ("= 45.0", "= 1e999"), f"router.relay_timeout: {SECONDS}, not inf"),
    "timeout of many digits": (FULL, ("= 45.0", f"= {'9' * 400}"), f"router.relay_timeout: {SECONDS}"),
    "boolean timeout": (FULL, ("= 45.0", "= true"), f"router.relay_timeout: {SECONDS}, not true"),
    "timeout as text": (FULL, ("= 45.0", '= "45"'), f'router.relay_timeout: {SECONDS}, not "45"'),
    "timeout as time": (
        FULL,
        ("= 45.0", "= 00:00:45"),
        f"router.relay_timeout: {SECONDS}, not a date or time",
    ),
    "timeout as array": (FULL, ("= 45.0", "= [45]"), f"router.relay_timeout: {SECONDS}, not an array"),
    "timeout as table": (FULL, ("= 45.0", "= { s = 45 }"), f"router.relay_timeout: {SECONDS}, not a table"),
    "probe interval": (FULL, ("= 10.0", "= 0.0"), f"router.availability_probe_interval: {SECONDS}, not 0.0"),
    "probe timeout": (FULL, ("= 2.0", "= -0.0"), f"router.availability_probe_timeout: {SECONDS}, not -0.0"),
    "probe bytes low": (
        FULL,
        ("131072\n\n", "1023\n\n"),
        "router.availability_probe_max_bytes: must be an integer from 1024 to 1048576, not 1023",
    ),
    "probe bytes high": (
        FULL,
        ("131072\n\n", "1048577\n\n"),
        "router.availability_probe_max_bytes: must be an integer from 1024 to 1048576, not 1048577",
    ),
    # Aliases.
    "alias of an unknown tier": (
        DIRECT,
        ('= "primary"\n\n', '= "secondary"\n\n'),
        'router.model_routes."llm.primary": must be the id of a configured tier, not "secondary"',
    ),
    "alias of no string": (
        DIRECT,
        ('= "primary"\n\n', "= 1\n\n"),
        'router.model_routes."llm.primary": must be the id of a tier, not 1',
    ),
    "alias of two tiers": (
        DIRECT,
        ('= "primary"\n\n', '= ["primary", "primary"]\n\n'),
        'router.model_routes."llm.primary": must be the id of a tier, not an array',
    ),
    "alias twice after normalisation": (
        DIRECT,
        ('= "primary"\n\n', '= "primary"\n" LLM.Primary" = "primary"\n\n'),
        'router.model_routes." LLM.Primary": is the same alias as router.model_routes."llm.primary"',
    ),
    "alias reserved": (DIRECT, ('"llm.primary"', "Capacity"), f"router.model_routes.Capacity: {ALIAS}"),
    "alias empty": (DIRECT, ('"llm.primary"', '" "'), f'router.model_routes." ": {ALIAS}'),
    "alias with a blank": (DIRECT, ('"llm.primary"', '"a b"'), f'router.model_routes."a b": {ALIAS}'),
    # Every tier.
    "tier without id": (UNROUTED, ('id = "primary"\n', ""), "router.tiers[0].id: is required"),
    "unsafe tier id": (
        UNROUTED,
        ('id = "primary"', 'id = "1st"'),
        f'router.tiers[0].id: {SAFE_ID}, not "1st"',
    ),
    "empty tier id": (UNROUTED, ('id = "primary"', 'id = ""'), f'router.tiers[0].id: {SAFE_ID}, not ""'),
    "tier id is no string": (UNROUTED, ('id = "primary"', "id = 1"), f"router.tiers[0].id: {SAFE_ID}, not 1"),
    "tier id twice": (
        edited(FULL, ('= "anthropic-direct"', '= "primary"')),
        ('id = "anthropic-direct"', 'id = "primary"'),
        "router.tiers[1].id: is the same as router.tiers[0].id",
    ),
    "no context_limit": (
        DIRECT,
        ("context_limit = 32768\n", ""),
        "router.tiers[0].context_limit: is required",
    ),
    "context_limit low": (
        DIRECT,
        ("= 32768", "= 0"),
        "router.tiers[0].context_limit: must be an integer from 1 to 10000000, not 0",
    ),
    "context_limit high": (
        DIRECT,
        ("= 32768", "= 10000001"),
        "router.tiers[0].context_limit: must be an integer from 1 to 10000000, not 10000001",
    ),
    "context_limit boolean": (
        DIRECT,
        ("= 32768", "= true"),
        "router.tiers[0].context_limit: must be an integer from 1 to 10000000, not true",
    ),
    "context_limit float": (
        DIRECT,
        ("= 32768", "= 32768.0"),
        "router.tiers[0].context_limit: must be an integer from 1 to 10000000, not 32768.0",
    ),
    "context_limit huge": (
        DIRECT,
        ("= 32768", f"= {'9' * 4000}"),
        "router.tiers[0].context_limit: must be an integer from 1 to 10000000",
    ),
    "context_limit date": (
        DIRECT,
        ("= 32768", "= 2026-01-01"),
        "router.tiers[0].context_limit: must be an integer from 1 to 10000000, not a date or time",
    ),
    "output over context": (
        DIRECT,
        ("= 32768", "= 1000\nmax_output_tokens = 1001"),
        "router.tiers[0].max_output_tokens: must be at most context_limit, 1000, not 1001",
    ),
    "output zero": (
        DIRECT,
        ("= 32768", "= 1000\nmax_output_tokens = 0"),
        "router.tiers[0].max_output_tokens: must be an integer from 1 to 10000000, not 0",
    ),
    "dialect": (
        DIRECT,
        ("id =", 'dialect = "gemini"\nid ='),
        'router.tiers[0].dialect: must be "openai" or "anthropic", not "gemini"',
    ),
    "privacy": (
        DIRECT,
        ("id =", 'privacy = "cloud"\nid ='),
        'router.tiers[0].privacy: must be "local", not "cloud"',
    ),
    "tool_support": (
        DIRECT,
        ("id =", "tool_support = 1\nid ="),
        "router.tiers[0].tool_support: must be true or false, not 1",
    ),
    "tier ceiling zero": (
        DIRECT,
        ("id =", "max_concurrency = 0\nid ="),
        f"router.tiers[0].max_concurrency: {CEILING}, not 0",
    ),
    "tier ceiling high": (
        DIRECT,
        ("id =", "max_concurrency = 100001\nid ="),
        f"router.tiers[0].max_concurrency: {CEILING}, not 100001",
    ),
    "tier ceiling boolean": (
        DIRECT,
        ("id =", "max_concurrency = true\nid ="),
        f"router.tiers[0].max_concurrency: {CEILING}, not true",
    ),
    "tier timeout": (
        DIRECT,
        ("id =", "timeout = 3601\nid ="),
        f"router.tiers[0].timeout: {SECONDS}, not 3601",
    ),
    "tier first_byte_timeout": (
        DIRECT,
        ("id =", "first_byte_timeout = 0\nid ="),
        f"router.tiers[0].first_byte_timeout: {SECONDS}, not 0",
    ),
    "wires is no array": (
        DIRECT,
        ("id =", 'wires = "chat"\nid ='),
        'router.tiers[0].wires: must be an array of strings, not "chat"',
    ),
    "unknown wire": (
        DIRECT,
        ("id =", 'wires = ["chat", "grpc"]\nid ='),
        'router.tiers[0].wires[1]: must be "chat" or "responses" or "messages", not "grpc"',
    ),
    "wire twice": (
        DIRECT,
        ("id =", 'wires = ["chat", "chat"]\nid ='),
        "router.tiers[0].wires[1]: is listed twice",
    ),
    "tier auth_env": (
        DIRECT,
        ("id =", 'auth_env = "hf_abcdefghijklmnop"\nid ='),
        f"router.tiers[0].auth_env: {ENVIRONMENT}",
    ),
    "description of two lines": (
        DIRECT,
        ("id =", 'description = "a\\nb"\nid ='),
        "router.tiers[0].description: must be 1 to 512 printable characters without white space around them",
    ),
    "engine is no string": (
        DIRECT,
        ("id =", "engine = 1\nid ="),
        f"router.tiers[0].engine: {PLAIN_NAME}, not 1",
    ),
    "engine is a URL": (
        DIRECT,
        ("id =", 'engine = "http://gpu-1:8000"\nid ='),
        f'router.tiers[0].engine: {PLAIN_NAME}, not "http://gpu-1:8000"',
    ),
    "quantization is an address": (
        DIRECT,
        ("id =", 'quantization = "10.9.8.7:8000"\nid ='),
        f'router.tiers[0].quantization: {PLAIN_NAME}, not "10.9.8.7:8000"',
    ),
    "empty quantization": (
        DIRECT,
        ("id =", 'quantization = ""\nid ='),
        f'router.tiers[0].quantization: {PLAIN_NAME}, not ""',
    ),
    "model too long": (
        DIRECT,
        ("qwen3-32b", "m" * 257),
        "router.tiers[0].model: must be 1 to 256 printable characters without white space around them",
    ),
    # The free-form body.
    "extra_body is no table": (
        DIRECT,
        ("id =", "extra_body = []\nid ="),
        "router.tiers[0].extra_body: must be a table, not an array",
    ),
    "extra_body date": (
        DIRECT,
        ("id =", "extra_body = { a = [1, { b = 2026-01-01T00:00:00Z }] }\nid ="),
        "router.tiers[0].extra_body.a[1].b: must not be a date or time, which JSON does not have",
    ),
    "extra_body nan": (
        DIRECT,
        ("id =", "extra_body.a = -nan\nid ="),
        "router.tiers[0].extra_body.a: must be finite, not nan",
    ),
    "extra_body inf": (
        DIRECT,
        ("id =", "extra_body_defaults.a = [inf]\nid ="),
        "router.tiers[0].extra_body_defaults.a[0]: must be finite, not inf",
    ),
    "extra_body huge": (
        DIRECT,
        ("id =", "extra_body.a = 9223372036854775808\nid ="),
        "router.tiers[0].extra_body.a: must be an integer of at most 64 bits",
    ),
    "extra_body deep": (
        DIRECT,
        ("id =", f"extra_body.a = {'[' * 17}{']' * 17}\nid ="),
        f"router.tiers[0].extra_body.a{'[0]' * 16}: is nested more than 16 levels deep",
    ),
    # Display metadata.
    "params is no table": (
        DIRECT,
        ("id =", "params = 1\nid ="),
        "router.tiers[0].params: must be a table, not 1",
    ),
    "params.capacity is no table": (
        DIRECT,
        ("id =", "params.capacity = []\nid ="),
        "router.tiers[0].params.capacity: must be a table, not an array",
    ),
    "gpu memory": (
        FULL,
        ("gpu_memory_total_mib = 97887", "gpu_memory_total_mib = 0"),
        "router.tiers[0].params.capacity.gpu_memory_total_mib: must be an integer from 1 to 100000000, not 0",
    ),
    "model memory": (
        FULL,
        ("33.5", "inf"),
        "router.tiers[0].params.capacity.model_memory_gib: "
        "must be a number over 0 and at most 100000, not inf",
    ),
    "image limit": (
        FULL,
        ("image_limit = 4", "image_limit = -1"),
        "router.tiers[0].params.capacity.image_limit: must be an integer from 0 to 10000, not -1",
    ),
    "media admission": (
        FULL,
        ("media_admission_enabled = true", 'media_admission_enabled = "yes"'),
        'router.tiers[0].params.capacity.media_admission_enabled: must be true or false, not "yes"',
    ),
    "modalities": (
        FULL,
        ('["text", "image"]', '["text", "two words"]'),
        f'router.tiers[0].params.capabilities.modalities[1]: {SAFE_ID}, not "two words"',
    ),
    "too many modalities": (
        FULL,
        ('["text", "image"]', str([f"m{n}" for n in range(17)])),
        "router.tiers[0].params.capabilities.modalities: must hold at most 16 entries, not 17",
    ),
    "fingerprint digest": (
        FULL,
        ("sha256:3", "sha512:3"),
        f"router.tiers[1].params.fingerprint.image_digest: {DIGEST}",
    ),
    # Direct tiers.
    "direct without model": (
        DIRECT,
        ('model = "qwen3-32b"\n', ""),
        'router.tiers[0].model: is required, unless metadata_source is "upstream"',
    ),
    "strategy on a direct tier": (
        DIRECT,
        ("id =", 'replica_strategy = "round_robin"\nid ='),
        "router.tiers[0].replica_strategy: is for replica tiers only",
    ),
    "identity on a direct tier": (
        DIRECT,
        (
            'model = "qwen3-32b"\n',
            'model = "qwen3-32b"\n'
            + PAIR[PAIR.index("[router.tiers.replica_identity]") : PAIR.index("[[router.tiers.rep")],
        ),
        "router.tiers[0].replica_identity: is for replica tiers only",
    ),
    "metadata_source": (
        DIRECT,
        ("id =", 'metadata_source = "engine"\nid ='),
        'router.tiers[0].metadata_source: must be "configured" or "upstream", not "engine"',
    ),
    "neither shape": (
        DIRECT,
        ('base_url = "http://127.0.0.1:8101/v1"\n', ""),
        "router.tiers[0]: must have exactly one of base_url and replicas",
    ),
    # Replica tiers.
    "both shapes": (
        PAIR,
        ('id = "pair"', 'id = "pair"\nbase_url = "http://127.0.0.1:8100/v1"'),
        "router.tiers[0]: must have exactly one of base_url and replicas",
    ),
    "a direct tier with an empty array": (
        DIRECT,
        ("id =", "replicas = []\nid ="),
        "router.tiers[0]: must have exactly one of base_url and replicas",
    ),
    "replica tier without model": (
        PAIR,
        ('model = "qwen3-32b"\n', ""),
        "router.tiers[0].model: is required on a replica tier",
    ),
    "model_identity absent": (
        PAIR,
        ("model_identity = true\n", ""),
        "router.tiers[0].model_identity: must be true on a replica tier",
    ),
    "model_identity false": (
        PAIR,
        ("model_identity = true\n", "model_identity = false\n"),
        "router.tiers[0].model_identity: must be true on a replica tier",
    ),
    "model_identity one": (
        PAIR,
        ("model_identity = true\n", "model_identity = 1\n"),
        "router.tiers[0].model_identity: must be true or false, not 1",
    ),
    "metadata from the upstream": (
        PAIR,
        ('id = "pair"', 'id = "pair"\nmetadata_source = "upstream"'),
        'router.tiers[0].metadata_source: must be "configured" on a replica tier',
    ),
    "params.fingerprint on a replica tier": (
        PAIR,
        ('id = "pair"', 'id = "pair"\nparams.fingerprint = { model_revision = "a" }'),
        "router.tiers[0].params.fingerprint: is for direct tiers only; a replica tier has replica_identity",
    ),
    "strategy": (
        PAIR,
        ('id = "pair"', 'id = "pair"\nreplica_strategy = "random"'),
        'router.tiers[0].replica_strategy: must be "round_robin" or "capacity", not "random"',
    ),
    "empty model_revision": (
        PAIR,
        ('"a1b2c3"', '""'),
        f'router.tiers[0].replica_identity.model_revision: {LABEL}, not ""',
    ),
    "engine_version of 129": (
        PAIR,
        ('"0.11.0"', f'"{"1" * 129}"'),
        f"router.tiers[0].replica_identity.engine_version: {LABEL}",
    ),
    "image_digest in capitals": (
        PAIR,
        ('"sha256:1', '"sha256:A'),
        f"router.tiers[0].replica_identity.image_digest: {DIGEST}",
    ),
    "config_fingerprint short": (
        PAIR,
        ('2222"', '222"'),
        f"router.tiers[0].replica_identity.config_fingerprint: {DIGEST}",
    ),
    "identity is no table": (
        PAIR,
        (
            PAIR[PAIR.index("[router.tiers.replica_identity]") : PAIR.index("[[router.tiers.rep")],
            'replica_identity = "a1b2c3"\n',
        ),
        "router.tiers[0].replica_identity: must be a table",
    ),
    # Members.
    "unsafe member id": (
        PAIR,
        ('"member-a"', '"member/a"'),
        f'router.tiers[0].replicas[0].id: {SAFE_ID}, not "member/a"',
    ),
    "member id twice": (
        PAIR,
        ('"member-b"', '"member-a"'),
        "router.tiers[0].replicas[1].id: is the same as router.tiers[0].replicas[0].id",
    ),
    "member URL twice": (
        PAIR,
        ("8102", "8101"),
        "router.tiers[0].replicas[1].base_url: is the same as router.tiers[0].replicas[0].base_url",
    ),
    "member URL twice after normalisation": (
        edited(PAIR, ("http://127.0.0.1:8101/v1", "http://engine/v1")),
        ("http://127.0.0.1:8102/v1", "HTTP://ENGINE:80/v1/"),
        "router.tiers[0].replicas[1].base_url: is the same as router.tiers[0].replicas[0].base_url",
    ),
    "resource twice": (
        PAIR,
        ('"llm-b"', '"llm-a"'),
        "router.tiers[0].replicas[1].resource_id: is the same as router.tiers[0].replicas[0].resource_id",
    ),
    "unsafe resource": (
        PAIR,
        ('"llm-b"', '"llm b"'),
        f'router.tiers[0].replicas[1].resource_id: {SAFE_ID}, not "llm b"',
    ),
    "second host": (
        PAIR,
        ('"gpu-host-1"\nresource_id = "llm-b"', '"gpu-host-2"\nresource_id = "llm-b"'),
        "router.tiers[0].replicas[1].host_id: must be the same as router.tiers[0].replicas[0].host_id",
    ),
    "unsafe host": (
        PAIR,
        ('"gpu-host-1"\nresource_id = "llm-b"', '"10.0.0.1"\nresource_id = "llm-b"'),
        f'router.tiers[0].replicas[1].host_id: {SAFE_ID}, not "10.0.0.1"',
    ),
    "qualification_ref absent": (
        PAIR,
        ('qualification_ref = "bench.2026-09-01:run-7"\n', ""),
        "router.tiers[0].replicas[0].qualification_ref: is required",
    ),
    "qualification_ref empty": (
        PAIR,
        ('"bench.2026-09-01:run-7"', '""'),
        f'router.tiers[0].replicas[0].qualification_ref: {REFERENCE}, not ""',
    ),
    "qualification_ref a path": (
        PAIR,
        ('"bench.2026-09-01:run-7"', '"runs/7"'),
        f'router.tiers[0].replicas[0].qualification_ref: {REFERENCE}, not "runs/7"',
    ),
    "qualification_ref a URL with a user": (
        PAIR,
        ('"bench.2026-09-01:run-7"', '"http://u:pw@wiki/7"'),
        f"router.tiers[0].replicas[0].qualification_ref: {REFERENCE}",
    ),
    "member ceiling zero": (
        CAPACITY,
        ("max_concurrency = 8", "max_concurrency = 0"),
        f"router.tiers[0].replicas[0].max_concurrency: {CEILING}, not 0",
    ),
    "member ceiling high": (
        CAPACITY,
        ("max_concurrency = 8", "max_concurrency = 100001"),
        f"router.tiers[0].replicas[0].max_concurrency: {CEILING}, not 100001",
    ),
    "member ceiling boolean": (
        CAPACITY,
        ("max_concurrency = 8", "max_concurrency = true"),
        f"router.tiers[0].replicas[0].max_concurrency: {CEILING}, not true",
    ),
    "member ceiling absent in capacity mode": (
        CAPACITY,
        ("max_concurrency = 8", ""),
        "router.tiers[0].replicas[0].max_concurrency: is required on every member in capacity mode",
    ),
    "members as a table": (
        PAIR,
        (PAIR[PAIR.index("[[router.tiers.rep") :], "[router.tiers.replicas]\n"),
        "router.tiers[0].replicas: must be an array of tables",
    ),
    "no members": (
        PAIR,
        (PAIR[PAIR.index("[[router.tiers.rep") :], ""),
        "router.tiers[0]: must have exactly one of base_url and replicas",
    ),
    "one member": (
        PAIR,
        (PAIR[PAIR.rindex("[[router.tiers.rep") :], ""),
        "router.tiers[0].replicas: must hold 2 to 16 members, not 1",
    ),
    # Purpose models and audio routes.
    "purpose kind": (
        FULL,
        ('"embedding"', '"chat"'),
        'router.purpose_models[0].kind: must be "embedding" or "rerank", not "chat"',
    ),
    "purpose id twice": (
        FULL,
        ('id = "rank"', 'id = "embed"'),
        "router.purpose_models[1].id: is the same as router.purpose_models[0].id",
    ),
    "purpose kind and model twice": (
        FULL,
        ('kind = "rerank"\nmodel = "bge-reranker-v2-m3"', 'kind = "embedding"\nmodel = "bge-m3"'),
        "router.purpose_models[1].model: is served already, for the same kind, by router.purpose_models[0]",
    ),
    "purpose without model": (
        FULL,
        ('model = "bge-m3"\n', ""),
        "router.purpose_models[0].model: is required",
    ),
    "purpose auth_env": (
        FULL,
        ('"EMBED_TOKEN"', '"embed-token"'),
        f"router.purpose_models[0].auth_env: {ENVIRONMENT}",
    ),
    "purpose timeout": (
        FULL,
        ("timeout = 30\n", "timeout = 0\n"),
        f"router.purpose_models[0].timeout: {SECONDS}, not 0",
    ),
    "purpose models are no array": (
        DIRECT,
        ("[router.model", "[router]\npurpose_models = 1\n[router.model"),
        "router.purpose_models: must be an array of tables",
    ),
    "audio purpose": (
        FULL,
        ('"stt"', '"asr"'),
        'router.audio_routes[0].purpose: must be "stt" or "tts", not "asr"',
    ),
    "audio id twice": (
        FULL,
        ('id = "kokoro"', 'id = "whisper"'),
        "router.audio_routes[1].id: is the same as router.audio_routes[0].id",
    ),
    "audio rate on stt": (
        FULL,
        ('purpose = "stt"', 'purpose = "stt"\nsource_sample_rate = 16000'),
        "router.audio_routes[0].source_sample_rate: is for tts only",
    ),
    "audio rate": (
        FULL,
        ("24000", "7999"),
        "router.audio_routes[1].source_sample_rate: must be an integer from 8000 to 384000, not 7999",
    ),
    "two audio defaults": (
        edited(FULL, ('purpose = "tts"', 'purpose = "stt"')),
        ("source_sample_rate = 24000\n", ""),
        "router.audio_routes[1].default: is true already, for the same purpose, at router.audio_routes[0]",
    ),
    "audio default": (
        FULL,
        ("default = true", 'default = "yes"'),
        'router.audio_routes[0].default: must be true or false, not "yes"',
    ),
}


@pytest.mark.requirement(
    "Q-R001", "Q-R002", "Q-R003", "Q-R005", "Q-R006", "Q-R010", "Q-T002", "Q-A002", "C-T001", "contract 1"
)
@pytest.mark.parametrize(("text", "edit", "expected"), ONE_FAULT.values(), ids=ONE_FAULT.keys())
def test_each_broken_rule_is_exactly_one_fault(text: str, edit: Edit, expected: str) -> None:
    assert faults(edited(text, edit)) == [expected]


@pytest.mark.requirement("Q-R005")
@pytest.mark.parametrize("key", ["model_revision", "engine_version", "image_digest", "config_fingerprint"])
def test_each_identity_key_is_required(key: str) -> None:
    lines = [line for line in PAIR.splitlines() if not line.startswith(f"{key} =")]
    assert faults("\n".join(lines)) == [f"router.tiers[0].replica_identity.{key}: is required"]


@pytest.mark.requirement("Q-R005")
def test_a_replica_tier_without_identity_is_refused() -> None:
    start, end = PAIR.index("[router.tiers.replica_identity]"), PAIR.index("[[router.tiers.rep")
    assert faults(PAIR[:start] + PAIR[end:]) == [
        "router.tiers[0].replica_identity: is required on a replica tier"
    ]


@pytest.mark.requirement("Q-R003")
@pytest.mark.parametrize("key", ["id", "base_url", "host_id", "resource_id", "qualification_ref"])
def test_each_member_key_is_required(key: str) -> None:
    member = PAIR.rindex("[[router.tiers.rep")
    lines = [line for line in PAIR[member:].splitlines() if not line.startswith(f"{key} =")]
    assert faults(PAIR[:member] + "\n".join(lines)) == [f"router.tiers[0].replicas[1].{key}: is required"]


@pytest.mark.requirement("Q-R003")
def test_seventeen_members_are_refused() -> None:
    head = PAIR[: PAIR.index("[[router.tiers.rep")]
    member = PAIR[PAIR.index("[[router.tiers.rep") : PAIR.rindex("[[router.tiers.rep")]
    members = [
        edited(member, ("member-a", f"m{n}"), ("8101", str(8101 + n)), ("llm-a", f"r{n}")) for n in range(17)
    ]
    assert faults(head + "".join(members)) == ["router.tiers[0].replicas: must hold 2 to 16 members, not 17"]


@pytest.mark.requirement("C-T003")
def test_all_capacity_tiers_together_have_at_most_256_members() -> None:
    """As many as the pressure cache can own; round-robin members do not count."""
    tier = CAPACITY[CAPACITY.index("[[router.tiers]]") :]
    head = tier[: tier.index("[[router.tiers.rep")]
    member = tier[tier.index("[[router.tiers.rep") : tier.rindex("[[router.tiers.rep")]

    def document(tiers: int, extra: str = "") -> str:
        text = ""
        for t in range(tiers):
            text += edited(head, ('"pair"', f'"t{t}"'))
            for n in range(16):
                text += edited(member, ("member-a", f"m{n}"), ("8101", str(8101 + n)), ("llm-a", f"r{n}"))
        return text + extra

    pair = PAIR[PAIR.index("[[router.tiers]]") :]
    assert len(parse_config(document(16, pair).encode()).tiers) == 17
    assert faults(document(17)) == ["router.tiers: must hold at most 256 members in capacity mode, not 272"]


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize("key", ["model", "stream", "stream_options", "messages", "input", "system"])
@pytest.mark.parametrize("table", ["extra_body", "extra_body_defaults"])
def test_extra_body_may_not_set_what_the_router_owns(table: str, key: str) -> None:
    text = edited(DIRECT, ("id =", f"{table} = {{ {key} = true, nested = {{ {key} = 1 }} }}\nid ="))
    assert faults(text) == [f"router.tiers[0].{table}.{key}: is the router's own to set"]


BAD_URLS = [
    "",
    "127.0.0.1:8101",
    "//127.0.0.1/v1",
    "/v1",
    "ftp://host/v1",
    "unix:///run/engine.sock",
    "http://",
    "http:///v1",
    "http://:8101/v1",
    "http://user@host/v1",
    "http://user:hunter2@host/v1",
    "http://@host/v1",
    "http://host/v1?key=hunter2",
    "http://host/v1?",
    "http://host/v1#top",
    "http://host/v1#",
    "http://host:/v1",
    "http://host:0/v1",
    "http://host:65536/v1",
    "http://host:abc/v1",
    "http://ho st/v1",
    "http://host/v 1",
    " http://host/v1",
    "http://host/v1\n",
    "http://host\t/v1",
    "http://host\\@evil/v1",
    "http://host/../v1",
    "http://host/./v1",
    "http://höst/v1",
    "http://[::1/v1",
    "http://[:::1]/v1",
    "http://[fe80::1%25eth0]/v1",
    "http://[127.0.0.1]/v1",
    "http://-host/v1",
    "http://" + "h" * 254,
    "http://host/" + "p" * 2048,
]


@pytest.mark.requirement("Q-R004", "contract 1")
@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_url_is_one_fault_that_does_not_repeat_it(url: str) -> None:
    assert [str(fault) for fault in table_faults("tier", TIER | {"base_url": url})] == [f"base_url: {URL}"]


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "HTTPS://Host.Example:443/v1/",
        "http://h_1:1",
        "http://[::1]:8101/v1",
        "http://h/a%20b//c",
    ],
)
def test_a_good_url_is_kept_as_written(url: str) -> None:
    assert check_field("tier", "base_url", url) == url


def test_only_accepted_urls_can_be_normalised() -> None:
    assert normalise_url("HTTPS://Host:443/V1/") == "https://host/V1"
    assert normalise_url("http://host:0443") == "http://host:443"
    with pytest.raises(ValueError) as refused:
        normalise_url("http://user:hunter2@host")
    assert str(refused.value) == "not an accepted URL"


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize(
    "path",
    [
        *("", "health", "//host/health", "/health?x=1", "/health#x", "/../health", "/a/.."),
        *("http://host/health", "/http://host", "/hea lth", "/health\n", "/%2e%2e/x", "\\health"),
        "/" + "p" * 256,
    ],
)
def test_a_bad_health_path_is_one_fault(path: str) -> None:
    expected = [f"health_path: {URL_PATH}"]
    assert [str(fault) for fault in table_faults("tier", TIER | {"health_path": path})] == expected


@pytest.mark.parametrize("path", ["/", "/health", "/v1/health.json", "/a//b", "/" + "p" * 255])
def test_a_good_health_path_is_accepted(path: str) -> None:
    assert check_field("tier", "health_path", path) == path


TIER: dict[str, object] = {"id": "t", "base_url": "http://h", "context_limit": 1, "model": "m"}


# --- Many faults ---


@pytest.mark.requirement("Q-T002", "contract 1")
@pytest.mark.parametrize("document", corpus.documents("config", "invalid"), ids=lambda path: path.stem)
def test_all_faults_of_a_document_come_together_in_its_order(document: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(document.read_bytes())
    assert [str(fault) for fault in refused.value.faults] == corpus.expected_faults(document)


@pytest.mark.requirement("contract 1")
def test_the_order_is_that_of_the_document_not_of_the_grammar() -> None:
    """Tiers before routes, keys as written; what is missing has its table's place."""
    assert faults(
        """
[[router.tiers]]
timeout = 0
id = "a b"

[[router.tiers]]
context_limit = 0
base_url = "x"
id = "b"

[router.model_routes]
z = "nowhere"
a = "b"

[router]
relay_timeout = 0

[server]
auth_env = "x"
"""
    ) == [
        "router.tiers[0]: must have exactly one of base_url and replicas",
        "router.tiers[0].context_limit: is required",
        f"router.tiers[0].timeout: {SECONDS}, not 0",
        f'router.tiers[0].id: {SAFE_ID}, not "a b"',
        'router.tiers[1].model: is required, unless metadata_source is "upstream"',
        "router.tiers[1].context_limit: must be an integer from 1 to 10000000, not 0",
        f"router.tiers[1].base_url: {URL}",
        'router.model_routes.z: must be the id of a configured tier, not "nowhere"',
        f"router.relay_timeout: {SECONDS}, not 0",
        f"server.auth_env: {ENVIRONMENT}",
    ]


@pytest.mark.requirement("contract 1")
def test_one_fault_does_not_bring_others_in_its_train() -> None:
    """An invalid tier id is one fault, not one more for each alias that names it."""
    text = DIRECT.replace('"primary"', '"1st"')
    assert faults(text) == [f'router.tiers[0].id: {SAFE_ID}, not "1st"']


@pytest.mark.requirement("contract 1")
def test_no_fault_repeats_a_secret_or_the_user_of_a_url() -> None:
    """Wherever it was put: secrets in names, user information in anything."""
    secret, url = "sk-live-0123456789abcdef", "http://user:hunter2@host/"
    text = f"""
"{url}" = 1
[server]
auth_env = "{secret}"
decision_log_path = "{url}\\n"
[router]
exhaustion_status = "{url}"
[router.model_routes]
"{url}" = "{secret}"
"ok" = "{url}"
[[router.tiers]]
id = "{secret}"
base_url = "{url}"
model = "{url}\\n"
dialect = "{secret}"
auth_env = "{url}"
wires = ["{url}"]
extra_body = {{ "{secret}" = 2026-01-01 }}
"""
    told = "\n".join(faults(text))
    assert len(told.splitlines()) == 13
    assert "hunter2" not in told
    assert secret not in told


# --- One value or table at a time ---


@pytest.mark.parametrize(
    ("table", "key", "value", "expected"),
    [
        ("model_route", "alias", " LLM.Primary ", "llm.primary"),
        ("tier", "timeout", 3, 3.0),
        ("tier", "wires", ["chat"], ("chat",)),
        ("router", "exhaustion_status", 429, 429),
        ("audio_route", "default", False, False),
    ],
)
def test_a_single_value_gets_its_frozen_form(table: str, key: str, value: object, expected: object) -> None:
    assert check_field(table, key, value) == expected


@pytest.mark.parametrize(
    ("table", "key", "value", "message"),
    [
        ("model_route", "alias", "fingerprints", ALIAS),
        ("tier", "timeout", datetime.date(2026, 1, 1), f"{SECONDS}, not a date or time"),
        ("replica_identity", "image_digest", "sha256:", f'{DIGEST}, not "sha256:"'),
        ("replica", "max_concurrency", 0, f"{CEILING}, not 0"),
        ("server", "auth_env", "sk-live", ENVIRONMENT),
    ],
)
def test_a_single_value_is_refused_with_the_message_of_its_fault(
    table: str, key: str, value: object, message: str
) -> None:
    with pytest.raises(ValueError) as refused:
        check_field(table, key, value)
    assert str(refused.value) == message


def test_a_single_table_is_held_to_the_rules_within_it() -> None:
    tier = {"id": "t", "context_limit": 10, "max_output_tokens": 11, "replicas": [{"id": "a"}], "model": "m"}
    assert [str(fault) for fault in table_faults("tier", tier)] == [
        "replica_identity: is required on a replica tier",
        "model_identity: must be true on a replica tier",
        "max_output_tokens: must be at most context_limit, 10, not 11",
        "replicas: must hold 2 to 16 members, not 1",
        "replicas[0].base_url: is required",
        "replicas[0].host_id: is required",
        "replicas[0].resource_id: is required",
        "replicas[0].qualification_ref: is required",
    ]
    route = {"id": "a", "purpose": "stt", "model": "m", "base_url": "http://h", "source_sample_rate": 8000}
    assert [str(fault) for fault in table_faults("audio_route", route)] == [
        "source_sample_rate: is for tts only"
    ]
    assert [str(fault) for fault in table_faults("purpose_model", {})] == [
        "id: is required",
        "kind: is required",
        "model: is required",
        "base_url: is required",
    ]
    assert table_faults("tier", TIER) == ()
    assert table_faults("server", {}) == ()
