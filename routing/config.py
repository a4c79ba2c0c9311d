"""The router configuration: TOML bytes in, frozen values or every fault out.

Each rule about a configured value is written here once. ``parse_config`` applies them to a document,
``check_field`` and ``table_faults`` to a value or table that is edited elsewhere. A value's presence is never
judged by its truth: a configured empty value is configured.

Sources: the router configuration contract (grammar and bounds), the replica contract R001 to R006 and R010,
and the capacity contract (replica_strategy, member ceilings).
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from admission.identifiers import (
    is_alias,
    is_digest,
    is_label,
    is_plain_name,
    is_qualification_ref,
    is_safe_id,
    normalise_alias,
)
from routing import rules
from routing.documents import (
    MAX_DOCUMENT_BYTES,
    DocumentError,
    Fault,
    Faults,
    Grammar,
    Invalid,
    Path,
    Rule,
    Table,
    check_unique,
    load_toml,
    read_bounded,
    render_path,
)
from routing.rules import FrozenJSON, normalise_url, thaw

__all__ = [
    "FIELD_RULES",
    "MAX_CAPACITY_MEMBERS",
    "MAX_DOCUMENT_BYTES",
    "MAX_MEMBERS",
    "MIN_MEMBERS",
    "AudioRoute",
    "ConfigError",
    "ConfigReading",
    "Fault",
    "PurposeModel",
    "ReplicaIdentity",
    "ReplicaMember",
    "RouterConfig",
    "RouterSettings",
    "ServerSettings",
    "Tier",
    "check_field",
    "load_config",
    "normalise_url",
    "parse_config",
    "read_config",
    "table_faults",
    "thaw",
    "unset_auth_envs",
]

MIN_MEMBERS: Final = 2
MAX_MEMBERS: Final = 16
"""Members of one replica tier."""

MAX_CAPACITY_MEMBERS: Final = 256
"""Members of all capacity-mode tiers together: as many as the pressure cache can own."""

Dialect: TypeAlias = Literal["openai", "anthropic"]
Wire: TypeAlias = Literal["chat", "responses", "messages"]
Strategy: TypeAlias = Literal["direct", "round_robin", "capacity"]

_NO_JSON: Final[Mapping[str, FrozenJSON]] = MappingProxyType({})


def _no_json() -> Mapping[str, FrozenJSON]:
    return _NO_JSON


class ConfigError(DocumentError):
    """A router configuration was refused; ``faults`` holds all reasons, in document order."""


# --- Values -----------------------------------------------------------------------------------------------
# URLs, paths and names of secrets stay out of repr, so that no log line shows one by accident.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """``[server]``: the environment variable with the bootstrap token, and the optional JSONL sink."""

    auth_env: str | None = field(default=None, repr=False)
    decision_log_path: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """``[router]``: what an unavailable tier answers, and the timeouts (seconds) that tiers inherit."""

    exhaustion_status: int = 503
    connect_timeout: float = 2.0
    first_byte_timeout: float = 600.0
    relay_timeout: float = 60.0
    availability_probe_interval: float = 5.0
    availability_probe_timeout: float = 3.0
    availability_probe_max_bytes: int = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIdentity:
    """What the operator declares to run behind every member of a tier; nobody has verified it."""

    model_revision: str
    engine_version: str
    image_digest: str
    config_fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMember:
    """One endpoint of a replica tier. ``max_concurrency`` is enforced under either strategy when present."""

    id: str
    base_url: str = field(repr=False)
    host_id: str = field(repr=False)
    resource_id: str = field(repr=False)
    qualification_ref: str
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One logical tier: direct (``base_url``) or replica (``replicas``, 2 to 16, in document order).

    A replica tier's ``base_url`` is the empty string, which must never reach a URL builder: requests and
    probes use ``member_view``. Limits are in tokens, timeouts in seconds; ``timeout`` None means the
    router's ``relay_timeout``, ``first_byte_timeout`` None the router's. ``extra_body``,
    ``extra_body_defaults`` and ``params`` are deeply frozen; ``thaw`` gives plain JSON values.
    """

    id: str
    context_limit: int
    base_url: str = field(default="", repr=False)
    description: str | None = None
    dialect: Dialect = "openai"
    privacy: Literal["local"] = "local"
    tool_support: bool = False
    auth_env: str | None = field(default=None, repr=False)
    model: str | None = None
    health_path: str | None = field(default=None, repr=False)
    model_identity: bool = False
    metadata_source: Literal["configured", "upstream"] = "configured"
    replica_strategy: Literal["round_robin", "capacity"] | None = None
    max_concurrency: int | None = None
    max_output_tokens: int | None = None
    timeout: float | None = None
    first_byte_timeout: float | None = None
    wires: tuple[Wire, ...] = ()
    extra_body: Mapping[str, FrozenJSON] = field(default_factory=_no_json, hash=False, repr=False)
    extra_body_defaults: Mapping[str, FrozenJSON] = field(default_factory=_no_json, hash=False, repr=False)
    engine: str | None = None
    quantization: str | None = None
    params: Mapping[str, FrozenJSON] = field(default_factory=_no_json, hash=False)
    replica_identity: ReplicaIdentity | None = None
    replicas: tuple[ReplicaMember, ...] = ()

    @property
    def is_replica(self) -> bool:
        return self.replicas != ()

    @property
    def strategy(self) -> Strategy:
        """How a member is chosen; ``direct`` where there is none to choose."""
        return self.replica_strategy if self.replica_strategy is not None else "direct"

    @property
    def member_ids(self) -> tuple[str, ...]:
        """The ids of all members, sorted: the order in which a cursor rotates. Empty for a direct tier."""
        return tuple(sorted(member.id for member in self.replicas))

    @property
    def effective_ceiling(self) -> int | None:
        """How many leases the whole tier may hold, or None for no bound.

        The configured ``max_concurrency``, never multiplied by members; else in capacity mode the sum of the
        member ceilings (capacity contract).
        """
        if self.max_concurrency is not None or self.replica_strategy != "capacity":
            return self.max_concurrency
        return sum(ceiling for member in self.replicas if (ceiling := member.max_concurrency) is not None)

    @property
    def admission_ceiling(self) -> int | None:
        """What the ledger is given: the effective ceiling."""
        return self.effective_ceiling

    def member(self, member_id: str) -> ReplicaMember:
        """The member of that id. Raises KeyError with a text that does not repeat it."""
        for member in self.replicas:
            if member.id == member_id:
                return member
        raise KeyError("unknown member")

    def member_view(self, member_id: str) -> "Tier":
        """The member as a direct tier under the tier's policy. Raises KeyError."""
        return replace(
            self,
            base_url=self.member(member_id).base_url,
            replicas=(),
            replica_strategy=None,
            replica_identity=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PurposeModel:
    """An embedding or rerank model, routed by its name."""

    id: str
    kind: Literal["embedding", "rerank"]
    model: str
    base_url: str = field(repr=False)
    auth_env: str | None = field(default=None, repr=False)
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioRoute:
    """A speech-to-text or text-to-speech model; ``source_sample_rate`` in Hz, of a tts model's output."""

    id: str
    purpose: Literal["stt", "tts"]
    model: str
    base_url: str = field(repr=False)
    source_sample_rate: int | None = None
    default: bool = False
    auth_env: str | None = field(default=None, repr=False)
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """A whole valid configuration. ``model_routes`` is the complete chat vocabulary: normalised alias to tier
    id; every tier id in it exists. Everything keeps document order.
    """

    server: ServerSettings = ServerSettings()
    router: RouterSettings = RouterSettings()
    model_routes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    tiers: tuple[Tier, ...]
    purpose_models: tuple[PurposeModel, ...] = ()
    audio_routes: tuple[AudioRoute, ...] = ()
    _tiers_by_id: Mapping[str, Tier] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_id = MappingProxyType({tier.id: tier for tier in self.tiers})
        object.__setattr__(self, "_tiers_by_id", by_id)

    def tier(self, tier_id: str) -> Tier:
        """The tier of that id. Raises KeyError with a text that does not repeat it."""
        found = self._tiers_by_id.get(tier_id)
        if found is None:
            raise KeyError("unknown tier")
        return found


# --- Grammar ----------------------------------------------------------------------------------------------

_SAFE_ID = rules.named(is_safe_id, "a letter and up to 63 more letters, digits, _ or -")
_LABEL = rules.named(is_label, "1 to 128 letters, digits, _ . + or -, the first a letter or digit")
_DIGEST = rules.named(is_digest, "sha256: and 64 lower-case hex digits")
_QUALIFICATION_REF = rules.named(
    is_qualification_ref, "1 to 128 letters, digits, _ . : or -, the first a letter or digit"
)
_MODEL = rules.text(256)
_PLAIN_NAME = rules.named(
    partial(is_plain_name, limit=64),
    "1 to 64 letters, digits, blanks, _ . + or -, the first a letter or digit, and no address",
)
_SECONDS = rules.number(3600)
_CEILING = rules.integer(1, 100_000)
_TOKENS = rules.integer(1, 10_000_000)
_WORDS = rules.words(_SAFE_ID, limit=16)

_IDENTITY_RULES: Final[Mapping[str, Rule]] = {
    "model_revision": _LABEL,
    "engine_version": _LABEL,
    "image_digest": _DIGEST,
    "config_fingerprint": _DIGEST,
}

# Display metadata: what the projections show and nothing else. Nothing is routed by it, except that the
# media keys of ``capacity`` are the media gate's policy.
_PARAMS: Final = rules.closed_table(
    {
        "capacity": rules.closed_table(
            {
                "gpu_role": _SAFE_ID,
                "gpu_name": rules.text(128),
                "gpu_memory_total_mib": rules.integer(1, 100_000_000),
                "kv_cache_capacity_tokens": rules.integer(1, 1_000_000_000_000),
                "scheduler_max_num_seqs": _CEILING,
                "model_memory_gib": rules.number(100_000),
                "media_admission_enabled": rules.boolean,
                "image_limit": rules.integer(0, 10_000),
                "video_limit": rules.integer(0, 10_000),
                "image_tokens_estimate": _TOKENS,
                "video_tokens_estimate": _TOKENS,
            }
        ),
        "capabilities": rules.closed_table(
            {
                "modalities": _WORDS,
                "thinking": rules.closed_table(
                    {
                        "supported": rules.boolean,
                        "default": rules.boolean,
                        "caller_override": rules.boolean,
                        "max_tokens": _TOKENS,
                    }
                ),
                "compat": rules.closed_table(
                    {
                        "supportsUsageInStreaming": rules.boolean,
                        "supportsStrictMode": rules.boolean,
                        "supportedReasoningEfforts": _WORDS,
                    }
                ),
            }
        ),
        "fingerprint": rules.closed_table(_IDENTITY_RULES),
    }
)

# What extra_body may not set, at its top level. ``model`` is the alias's rewriting; ``stream`` decides how
# the answer is read and framed; ``messages``, ``input`` and ``system`` are the caller's words, which the
# gates have measured; ``stream_options`` belongs to the exchange, which asks for usage and keeps the usage
# chunk from a caller that did not.
_EXTRA_BODY: Final = rules.json_table(
    reserved=("model", "stream", "stream_options", "messages", "input", "system")
)

_DOCUMENT = Grammar(required=("router",), nested=("server", "router"))
_SERVER = Grammar(rules={"auth_env": rules.environment_name, "decision_log_path": rules.text(1024)})
_ROUTER = Grammar(
    rules={
        "exhaustion_status": rules.choice(429, 503, 529),
        "connect_timeout": _SECONDS,
        "first_byte_timeout": _SECONDS,
        "relay_timeout": _SECONDS,
        "availability_probe_interval": _SECONDS,
        "availability_probe_timeout": _SECONDS,
        "availability_probe_max_bytes": rules.integer(1024, 1_048_576),
    },
    required=("tiers",),
    nested=("model_routes", "tiers", "purpose_models", "audio_routes"),
)
_TIER = Grammar(
    rules={
        "id": _SAFE_ID,
        "base_url": rules.url,
        "description": rules.text(512),
        "dialect": rules.choice("openai", "anthropic"),
        "context_limit": _TOKENS,
        "privacy": rules.choice("local"),
        "tool_support": rules.boolean,
        "auth_env": rules.environment_name,
        "model": _MODEL,
        "health_path": rules.url_path,
        "model_identity": rules.boolean,
        "metadata_source": rules.choice("configured", "upstream"),
        "replica_strategy": rules.choice("round_robin", "capacity"),
        "max_concurrency": _CEILING,
        "max_output_tokens": _TOKENS,
        "timeout": _SECONDS,
        "first_byte_timeout": _SECONDS,
        "wires": rules.words(rules.choice("chat", "responses", "messages"), limit=3),
        "extra_body": _EXTRA_BODY,
        "extra_body_defaults": _EXTRA_BODY,
        "engine": _PLAIN_NAME,
        "quantization": _PLAIN_NAME,
        "params": _PARAMS,
    },
    required=("id", "context_limit"),
    nested=("replica_identity", "replicas"),
)
_REPLICA_IDENTITY = Grammar(rules=_IDENTITY_RULES, required=tuple(_IDENTITY_RULES))
_REPLICA = Grammar(
    rules={
        "id": _SAFE_ID,
        "base_url": rules.url,
        "host_id": _SAFE_ID,
        "resource_id": _SAFE_ID,
        "qualification_ref": _QUALIFICATION_REF,
        "max_concurrency": _CEILING,
    },
    required=("id", "base_url", "host_id", "resource_id", "qualification_ref"),
)
_PURPOSE_MODEL = Grammar(
    rules={
        "id": _SAFE_ID,
        "kind": rules.choice("embedding", "rerank"),
        "model": _MODEL,
        "base_url": rules.url,
        "auth_env": rules.environment_name,
        "timeout": _SECONDS,
    },
    required=("id", "kind", "model", "base_url"),
)
_AUDIO_ROUTE = Grammar(
    rules={
        "id": _SAFE_ID,
        "purpose": rules.choice("stt", "tts"),
        "model": _MODEL,
        "base_url": rules.url,
        "source_sample_rate": rules.integer(8000, 384_000),
        "default": rules.boolean,
        "auth_env": rules.environment_name,
        "timeout": _SECONDS,
    },
    required=("id", "purpose", "model", "base_url"),
)


def _alias(value: object) -> str:
    alias = normalise_alias(value) if type(value) is str else value
    if not is_alias(alias):
        raise Invalid(
            "must be 1 to 128 letters, digits, . _ : / or -, the first a letter or digit, "
            "and none of capacity, capabilities, fingerprints"
        )
    return alias


FIELD_RULES: Final[Mapping[str, Mapping[str, Rule]]] = MappingProxyType(
    {
        "server": _SERVER.rules,
        "router": _ROUTER.rules,
        "model_route": {"alias": _alias, "tier": _SAFE_ID},
        "tier": _TIER.rules,
        "replica_identity": _REPLICA_IDENTITY.rules,
        "replica": _REPLICA.rules,
        "purpose_model": _PURPOSE_MODEL.rules,
        "audio_route": _AUDIO_ROUTE.rules,
    }
)
"""The rule of each key, by kind of table: the whole grammar, for whoever edits it field by field."""


# --- Reading ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReading:
    """What reading a document came to.

    ``faults`` is everything wrong with it. ``config`` is None, unless all that is wrong is how members of one
    tier relate in the topology (a second host, a resource twice). The snapshot validator has codes of
    its own for those two, and must see such a document; nobody else may.
    """

    config: RouterConfig | None = field(repr=False)
    faults: tuple[Fault, ...]


def parse_config(data: bytes) -> RouterConfig:
    """The configuration that ``data`` holds, at most ``MAX_DOCUMENT_BYTES`` of UTF-8 TOML.

    Raises ConfigError with all faults of the document. Nothing else is raised for any bytes, nothing is
    looked up, opened or connected to.
    """
    reading = read_config(data)
    if reading.faults or reading.config is None:
        raise ConfigError(reading.faults)
    return reading.config


def load_config(path: str | os.PathLike[str]) -> RouterConfig:
    """Read a file once, at most a byte over the limit, and parse it. Raises OSError and ConfigError."""
    return parse_config(read_bounded(path))


def read_config(data: bytes) -> ConfigReading:
    """As ``parse_config``, with the faults as a value; see ``ConfigReading``."""
    document = load_toml(data)
    if isinstance(document, Fault):
        return ConfigReading(config=None, faults=(document,))
    faults = Faults(document)
    root = Table(faults, (), document, _DOCUMENT)
    server = root.table("server", _SERVER)
    router = root.table("router", _ROUTER)
    tiers = [_TierTables(table) for table in router.tables("tiers", _TIER)]
    purpose_models = router.tables("purpose_models", _PURPOSE_MODEL)
    audio_routes = router.tables("audio_routes", _AUDIO_ROUTE)
    model_routes = _read_model_routes(router, tiers)
    _check_tiers(router, tiers)
    _check_purpose_models(purpose_models)
    _check_audio_routes(audio_routes)
    relational = sum(tier.check_relations() for tier in tiers)
    config = None
    if len(faults) == relational:
        config = RouterConfig(
            server=ServerSettings(**server.values),
            router=RouterSettings(**router.values),
            model_routes=MappingProxyType(model_routes),
            tiers=tuple(tier.build() for tier in tiers),
            purpose_models=tuple(PurposeModel(**table.values) for table in purpose_models),
            audio_routes=tuple(AudioRoute(**table.values) for table in audio_routes),
        )
    return ConfigReading(config=config, faults=faults.in_order())


class _TierTables:
    """One ``[[router.tiers]]`` entry with its nested tables, and what must agree within one tier."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.identity = table.table("replica_identity", _REPLICA_IDENTITY)
        self.members = table.tables("replicas", _REPLICA)
        if not table.is_table:
            return
        # Which shape was meant goes by what is configured: an empty array is still a replica tier.
        has_url, has_replicas = "base_url" in table, "replicas" in table
        if has_url == has_replicas:
            table.faults.add(table.path, "must have exactly one of base_url and replicas")
        elif has_replicas:
            self._check_replica_tier()
        else:
            self._check_direct_tier()
        self._check_limits()
        check_unique(self.members, "id")
        check_unique(self.members, "base_url", form=normalise_url)

    def _check_limits(self) -> None:
        values = self.table.values
        output, context = values.get("max_output_tokens"), values.get("context_limit")
        if output is not None and context is not None and output > context:
            self.table.refuse("max_output_tokens", f"must be at most context_limit, {context}, not {output}")

    def _check_direct_tier(self) -> None:
        table = self.table
        for key in ("replica_strategy", "replica_identity"):
            if key in table:
                table.refuse(key, "is for replica tiers only")
        if "model" not in table and table.values.get("metadata_source") != "upstream":
            table.refuse("model", 'is required, unless metadata_source is "upstream"')

    def _check_replica_tier(self) -> None:
        table = self.table
        if isinstance(table.raw["replicas"], list) and not MIN_MEMBERS <= len(self.members) <= MAX_MEMBERS:
            table.refuse(
                "replicas", f"must hold {MIN_MEMBERS} to {MAX_MEMBERS} members, not {len(self.members)}"
            )
        for key in ("model", "replica_identity"):
            if key not in table:
                table.refuse(key, "is required on a replica tier")
        if "model_identity" not in table or table.values.get("model_identity") is False:
            table.refuse("model_identity", "must be true on a replica tier")
        if table.values.get("metadata_source") == "upstream":
            table.refuse("metadata_source", 'must be "configured" on a replica tier')
        if "fingerprint" in table.values.get("params", ()):
            path: Path = (*table.at("params"), "fingerprint")
            table.faults.add(path, "is for direct tiers only; a replica tier has replica_identity")
        if table.values.get("replica_strategy") == "capacity":
            for member in self.members:
                if "max_concurrency" not in member:
                    member.refuse("max_concurrency", "is required on every member in capacity mode")

    def check_relations(self) -> int:
        """Record members on a second host and resources used twice; returns how many faults that makes."""
        before = len(self.table.faults)
        check_unique(self.members, "resource_id")
        hosts = [member for member in self.members if "host_id" in member.values]
        for member in hosts[1:]:
            if member.values["host_id"] != hosts[0].values["host_id"]:
                member.refuse("host_id", f"must be the same as {hosts[0].place('host_id')}")
        return len(self.table.faults) - before

    def build(self) -> Tier:
        """The tier; only for a document without faults other than those of ``check_relations``."""
        if "replicas" not in self.table:
            return Tier(**self.table.values)
        return Tier(
            **{"replica_strategy": "round_robin"} | self.table.values,
            replica_identity=ReplicaIdentity(**self.identity.values),
            replicas=tuple(ReplicaMember(**member.values) for member in self.members),
        )


def _read_model_routes(router: Table, tiers: list[_TierTables]) -> dict[str, str]:
    """The normalised aliases. A tier that only has faults of its own counts as existing."""
    routes = router.table("model_routes", Grammar(open=True))
    tier_ids = {value for tier in tiers if isinstance(value := tier.table.raw.get("id"), str)}
    found: dict[str, str] = {}
    written: dict[str, str] = {}
    for key, tier_id in routes.raw.items():
        try:
            alias = _alias(key)
        except Invalid as error:
            routes.refuse(key, str(error))
            continue
        if alias in written:
            routes.refuse(key, f"is the same alias as {routes.place(written[alias])}")
        written.setdefault(alias, key)
        if not isinstance(tier_id, str):
            routes.refuse(key, f"must be the id of a tier{rules.shown(tier_id)}")
        elif tier_id not in tier_ids:
            routes.refuse(key, f"must be the id of a configured tier{rules.shown(tier_id)}")
        else:
            found[alias] = tier_id
    return found


def _check_tiers(router: Table, tiers: list[_TierTables]) -> None:
    if isinstance(router.raw.get("tiers"), list) and not tiers:
        router.refuse("tiers", "must hold at least one tier")
    check_unique([tier.table for tier in tiers], "id")
    members = sum(
        len(tier.members) for tier in tiers if tier.table.values.get("replica_strategy") == "capacity"
    )
    if members > MAX_CAPACITY_MEMBERS:
        router.refuse(
            "tiers", f"must hold at most {MAX_CAPACITY_MEMBERS} members in capacity mode, not {members}"
        )


def _check_purpose_models(tables: list[Table]) -> None:
    check_unique(tables, "id")
    seen: dict[tuple[object, object], Table] = {}
    for table in tables:
        if "kind" not in table.values or "model" not in table.values:
            continue
        first = seen.setdefault((table.values["kind"], table.values["model"]), table)
        if first is not table:
            table.refuse("model", f"is served already, for the same kind, by {first.place()}")


def _check_audio_routes(tables: list[Table]) -> None:
    check_unique(tables, "id")
    defaults: dict[object, Table] = {}
    for table in tables:
        purpose = table.values.get("purpose")
        if "source_sample_rate" in table and purpose == "stt":
            table.refuse("source_sample_rate", "is for tts only")
        if table.values.get("default") is True and purpose is not None:
            first = defaults.setdefault(purpose, table)
            if first is not table:
                table.refuse("default", f"is true already, for the same purpose, at {first.place()}")


# --- For whoever edits a part -----------------------------------------------------------------------------


def check_field(table: str, key: str, value: object) -> object:
    """The frozen form of one value under its rule, ``FIELD_RULES[table][key]``.

    Raises ValueError, its text a message for the value's owner.
    """
    return FIELD_RULES[table][key](value)


_TABLES: Final[Mapping[str, Grammar]] = {
    "server": _SERVER,
    "router": _ROUTER,
    "replica_identity": _REPLICA_IDENTITY,
    "replica": _REPLICA,
    "purpose_model": _PURPOSE_MODEL,
}


def table_faults(table: str, values: Mapping[str, object]) -> tuple[Fault, ...]:
    """All faults of one table on its own, with paths below it (the table itself is ``document``).

    ``table`` is a key of ``FIELD_RULES``, except ``model_route``; ``values`` is as TOML would give it. What
    only the rest of a configuration can show (unknown tier, duplicate id) is not looked at.
    """
    faults = Faults(values)
    if table == "tier":
        _TierTables(Table(faults, (), values, _TIER)).check_relations()
    elif table == "audio_route":
        _check_audio_routes([Table(faults, (), values, _AUDIO_ROUTE)])
    else:
        Table(faults, (), values, _TABLES[table])
    return faults.in_order()


def unset_auth_envs(config: RouterConfig, environ: Mapping[str, str]) -> list[str]:
    """The paths of all ``auth_env`` keys whose variable is unset or empty in ``environ``, in grammar order.

    An upstream whose variable is unset gets no Authorization header. The names are not repeated.
    """
    places: list[tuple[Path, str | None]] = [(("server", "auth_env"), config.server.auth_env)]
    groups: list[tuple[str, Iterable[Tier | PurposeModel | AudioRoute]]] = [
        ("tiers", config.tiers),
        ("purpose_models", config.purpose_models),
        ("audio_routes", config.audio_routes),
    ]
    for key, entries in groups:
        places.extend((("router", key, n, "auth_env"), entry.auth_env) for n, entry in enumerate(entries))
    return [render_path(path) for path, name in places if name is not None and environ.get(name, "") == ""]
