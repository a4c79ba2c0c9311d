"""What the database keeps of routing: captured snapshots and which one is active, API keys, what was done,
and the working copy of a configuration.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from django.db import models
from django.utils import timezone

from admission.identifiers import normalise_alias
from routing import config
from routing.documents import Fault
from routing.rendering import Table
from routing.working_row import KeyRule, NamedRow, WorkingRow


class RouterSnapshot(models.Model):
    """One capture: the exact bytes that were validated, never edited and never re-serialised.

    ``config_bytes`` and ``topology_bytes`` are what a file or a publication held, so an older snapshot can be
    validated again as it was.
    """

    class Source(models.TextChoices):
        FIRST_START = "first_start", "installed on first start"
        CLI = "cli", "command line"
        REST = "rest", "REST"
        PUBLICATION = "publication", "published from the working copy"
        UPLOAD = "upload", "uploaded in the console"
        PROMOTION = "promotion", "promotion"

    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=150)
    source = models.CharField(max_length=16, choices=Source)
    config_bytes = models.BinaryField()
    config_sha256 = models.CharField(max_length=71)
    topology_bytes = models.BinaryField(null=True)
    topology_sha256 = models.CharField(max_length=71, blank=True)
    overlay_bytes = models.BinaryField(null=True)
    tier_count = models.PositiveIntegerField()
    replica_tier_count = models.PositiveIntegerField()
    replica_member_count = models.PositiveIntegerField()

    class Meta:
        ordering = ["-id"]
        permissions = [("activate_snapshot", "Can activate a router snapshot")]

    def __str__(self) -> str:
        return f"snapshot {self.pk} ({self.config_sha256[:12]})"


class ActiveSnapshot(models.Model):
    """The pointer to the snapshot that the router runs; one row, moved in one transaction."""

    SINGLETON = 1

    snapshot = models.ForeignKey(RouterSnapshot, on_delete=models.PROTECT, related_name="+")
    activated_at = models.DateTimeField(auto_now=True)
    activated_by = models.CharField(max_length=150)

    def __str__(self) -> str:
        return f"active: {self.snapshot}"


class ApiKey(models.Model):
    """One API key. The key itself is shown once and kept nowhere: the row holds its SHA-256.

    A key that is revoked stays as a row, so that its name stays taken and what it did stays readable.
    """

    name = models.CharField(max_length=100, unique=True)
    prefix = models.CharField(max_length=16, editable=False)
    """How the key begins, so that people can tell which one they hold."""
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField()
    """Names of scopes, in the order of `routing.access.Scope`."""
    max_concurrency = models.PositiveIntegerField("requests at a time", null=True, blank=True)
    expires_at = models.DateTimeField("expires", null=True, blank=True)
    created_at = models.DateTimeField("created", default=timezone.now, editable=False)
    created_by = models.CharField(max_length=150, editable=False)
    revoked_at = models.DateTimeField("revoked", null=True, editable=False)
    last_used_at = models.DateTimeField("last used", null=True, editable=False)
    """Written in the background, so it may be a little behind."""

    class Meta:
        ordering = ["name"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return self.name


class AuditEntry(models.Model):
    """One change that was made: who made it, what it was, to which scope or thing, and how it ended.

    Empty texts mean that there is no such thing. Entries are added and never changed.
    """

    class Through(models.TextChoices):
        REST = "rest", "REST"
        CONSOLE = "console", "console"
        START = "start", "start of the process"
        OFFLINE = "offline", "command line, with no process serving"

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.CharField(max_length=150)
    through = models.CharField(max_length=16, choices=Through)
    action = models.CharField(max_length=32)
    tier_id = models.CharField("tier", max_length=64, blank=True)
    member_id = models.CharField("member", max_length=64, blank=True)
    subject = models.CharField(max_length=150, blank=True)
    """What the change was made to, where that is no tier or member: a key's name, a snapshot's number."""
    reason = models.CharField(max_length=128, blank=True)
    result = models.CharField(max_length=128, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return " ".join(filter(None, (self.actor, self.action, self.tier_id, self.member_id, self.subject)))


class Promotion(models.Model):
    """The journal of one promotion: a direct tier moved to another resource, or on its way there or back.

    ``promoted`` and ``rollback`` are the two complete configurations between which it goes; which of them is
    served, the active pointer says. Without an outcome it is at work, or was stopped.
    """

    class Outcome(models.TextChoices):
        PROMOTED = "promoted", "promoted"
        ROLLED_BACK = "rolled_back", "rolled back"
        NOT_PROMOTED = "not_promoted", "not promoted, nothing was changed"
        SUPERSEDED = "superseded", "superseded by another configuration"

    tier_id = models.CharField("tier", max_length=64)
    resource_id = models.CharField("resource", max_length=64)
    promoted = models.ForeignKey(RouterSnapshot, on_delete=models.PROTECT, related_name="+")
    rollback = models.ForeignKey(RouterSnapshot, on_delete=models.PROTECT, related_name="+")
    drain_timeout = models.FloatField()
    actor = models.CharField(max_length=150)
    through = models.CharField(max_length=16, choices=AuditEntry.Through)
    started_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)
    steps = models.JSONField(default=list)
    """What was done, in order: objects with ``at``, ``step`` and ``outcome``."""
    outcome = models.CharField(max_length=16, choices=Outcome, blank=True)
    code = models.CharField(max_length=64, blank=True)
    """The refusal that led to the outcome, when one did."""

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["outcome"], condition=models.Q(outcome=""), name="one_promotion_without_an_outcome"
            )
        ]

    def __str__(self) -> str:
        return f"{self.tier_id} to {self.resource_id}"


# --- The working copy -------------------------------------------------------------------------------------
# What people edit in the console. Nothing is served from these rows: publishing writes them as TOML once, and
# from there on the bytes count (see `routing.working_copy`).


def _text(table: str, key: str, limit: int, **options: Any) -> "models.CharField[Any, Any]":
    """A text column under the rule of ``key``. Optional: the empty text is a key that is not configured."""
    options.setdefault("blank", "default" not in options)
    return models.CharField(max_length=limit, validators=[KeyRule(table, key)], **options)


def _required(table: str, key: str, limit: int, **options: Any) -> "models.CharField[Any, Any]":
    return _text(table, key, limit, blank=False, **options)


def _choice(table: str, key: str, words: tuple[str, ...], **options: Any) -> "models.CharField[Any, Any]":
    return _text(table, key, 16, choices=[(word, word) for word in words], **options)


def _identifier(table: str, **options: Any) -> "models.CharField[Any, Any]":
    return models.CharField("id", max_length=64, validators=[KeyRule(table, "id")], **options)


def _whole(table: str, key: str, **options: Any) -> "models.PositiveIntegerField[Any, Any]":
    if "default" not in options:
        options.update(null=True, blank=True)
    return models.PositiveIntegerField(validators=[KeyRule(table, key)], **options)


def _seconds(table: str, key: str, **options: Any) -> "models.FloatField[Any, Any]":
    if "default" not in options:
        options.update(null=True, blank=True)
    return models.FloatField(validators=[KeyRule(table, key)], help_text="Seconds.", **options)


def _json(table: str, key: str, default: Callable[[], object]) -> "models.JSONField[Any, Any]":
    return models.JSONField(default=default, blank=True, validators=[KeyRule(table, key)])


class RouterSettings(WorkingRow):
    """``[server]``, ``[router]`` and the topology's own id; one row."""

    SINGLETON = 1
    TABLE = "router"
    COLUMNS = {"id": "topology_id"}
    DEFAULTS: ClassVar = config.RouterSettings()

    auth_env = _text("server", "auth_env", 128)
    decision_log_path = _text("server", "decision_log_path", 1024)
    exhaustion_status = _whole(
        "router",
        "exhaustion_status",
        default=DEFAULTS.exhaustion_status,
        choices=[(429, "429"), (503, "503"), (529, "529")],
    )
    connect_timeout = _seconds("router", "connect_timeout", default=DEFAULTS.connect_timeout)
    first_byte_timeout = _seconds("router", "first_byte_timeout", default=DEFAULTS.first_byte_timeout)
    relay_timeout = _seconds("router", "relay_timeout", default=DEFAULTS.relay_timeout)
    availability_probe_interval = _seconds(
        "router", "availability_probe_interval", default=DEFAULTS.availability_probe_interval
    )
    availability_probe_timeout = _seconds(
        "router", "availability_probe_timeout", default=DEFAULTS.availability_probe_timeout
    )
    availability_probe_max_bytes = _whole(
        "router", "availability_probe_max_bytes", default=DEFAULTS.availability_probe_max_bytes
    )
    topology_id = _text("topology", "id", 64, help_text="Empty: there is no topology, and no replica tier.")

    class Meta:
        verbose_name_plural = "router settings"

    def __str__(self) -> str:
        return "router settings"

    @classmethod
    def current(cls) -> "RouterSettings":
        """The one row; unsaved, with every default, when nobody has saved it yet."""
        return cls.objects.filter(pk=cls.SINGLETON).first() or cls(pk=cls.SINGLETON)

    def table_faults(self) -> tuple[Fault, ...]:
        """Of both tables; that there are no tiers is not this row's fault."""
        router = (fault for fault in super().table_faults() if fault.path != "tiers")
        return (*config.table_faults("server", self.server_table()), *router)

    def server_table(self) -> Table:
        return self._values("server")

    def topology_header(self) -> Table:
        return {"id": self.topology_id} if self.topology_id else {}


class Tier(NamedRow):
    """``[[router.tiers]]``: a direct tier with ``base_url``, or without one a replica tier with members."""

    TABLE = "tier"
    COLUMNS = {"id": "identifier", "replica_identity": "model_revision"}
    IDENTITY: ClassVar = ("model_revision", "engine_version", "image_digest", "config_fingerprint")

    identifier = _identifier("tier", unique=True)
    base_url = _text(
        "tier",
        "base_url",
        2048,
        verbose_name="base URL",
        help_text="Direct tiers only. Empty: a replica tier.",
    )
    description = _text("tier", "description", 512)
    dialect = _choice("tier", "dialect", ("openai", "anthropic"), default="openai")
    context_limit = models.PositiveIntegerField(validators=[KeyRule("tier", "context_limit")])
    privacy = _choice("tier", "privacy", ("local",), default="local")
    tool_support = models.BooleanField(default=False)
    auth_env = _text("tier", "auth_env", 128, help_text="Name of an environment variable, never a secret.")
    model = _text("tier", "model", 256)
    health_path = _text("tier", "health_path", 256)
    model_identity = models.BooleanField(default=False)
    metadata_source = _choice("tier", "metadata_source", ("configured", "upstream"), default="configured")
    replica_strategy = _choice("tier", "replica_strategy", ("round_robin", "capacity"))
    max_concurrency = _whole("tier", "max_concurrency")
    max_output_tokens = _whole("tier", "max_output_tokens")
    timeout = _seconds("tier", "timeout")
    first_byte_timeout = _seconds("tier", "first_byte_timeout")
    wires = _json("tier", "wires", list)
    extra_body = _json("tier", "extra_body", dict)
    extra_body_defaults = _json("tier", "extra_body_defaults", dict)
    engine = _text("tier", "engine", 64)
    quantization = _text("tier", "quantization", 64)
    params = _json("tier", "params", dict)
    model_revision = _text("replica_identity", "model_revision", 128)
    engine_version = _text("replica_identity", "engine_version", 128)
    image_digest = _text("replica_identity", "image_digest", 71)
    config_fingerprint = _text("replica_identity", "config_fingerprint", 71)

    def as_table(self, members: "Iterable[ReplicaMember] | None" = None) -> Table:
        """The tier with ``members``, or without them as a table that holds no member yet."""
        table = super().as_table()
        identity = self._values("replica_identity")
        if identity:
            table["replica_identity"] = identity
        replicas = [member.as_table() for member in members or ()]
        if replicas or not self.base_url:
            table["replicas"] = replicas
        return table

    def table_faults(self) -> tuple[Fault, ...]:
        """Without those of the members, which are rows of their own and may be in another form still."""
        return tuple(fault for fault in super().table_faults() if not fault.path.startswith("replicas"))

    def column_of(self, fault: Fault) -> tuple[str, str]:
        nested, _, key = fault.path.partition(".")
        if nested == "replica_identity" and key in self.IDENTITY:
            return key, fault.message
        return super().column_of(fault)


class ReplicaMember(NamedRow):
    """``[[router.tiers.replicas]]``: one endpoint of a replica tier."""

    TABLE = "replica"

    tier = models.ForeignKey(Tier, on_delete=models.CASCADE, related_name="members")
    identifier = _identifier("replica")
    base_url = _required("replica", "base_url", 2048, verbose_name="base URL")
    host_id = _required("replica", "host_id", 64, verbose_name="host")
    resource_id = _required("replica", "resource_id", 64, verbose_name="resource")
    qualification_ref = _required("replica", "qualification_ref", 128)
    max_concurrency = _whole("replica", "max_concurrency")

    class Meta(NamedRow.Meta):
        constraints = [
            models.UniqueConstraint(fields=["tier", "identifier"], name="one_member_of_an_id_in_a_tier")
        ]


class ModelRoute(models.Model):
    """``[router.model_routes]``: one alias and the tier that it leads to."""

    alias = models.CharField(max_length=128, unique=True, validators=[KeyRule("model_route", "alias")])
    tier = models.ForeignKey(Tier, on_delete=models.CASCADE, related_name="routes")
    position = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["position", "id"]

    def __str__(self) -> str:
        return self.alias

    def clean(self) -> None:
        """Keep the form in which an alias is looked up; its column's validator holds its rule."""
        self.alias = normalise_alias(self.alias)


class PurposeModel(NamedRow):
    """``[[router.purpose_models]]``: an embedding or rerank model, routed by its name."""

    TABLE = "purpose_model"

    identifier = _identifier("purpose_model", unique=True)
    kind = _choice("purpose_model", "kind", ("embedding", "rerank"), blank=False)
    model = _required("purpose_model", "model", 256)
    base_url = _required("purpose_model", "base_url", 2048, verbose_name="base URL")
    auth_env = _text("purpose_model", "auth_env", 128)
    timeout = _seconds("purpose_model", "timeout")


class AudioRoute(NamedRow):
    """``[[router.audio_routes]]``: a speech-to-text or text-to-speech model."""

    TABLE = "audio_route"

    identifier = _identifier("audio_route", unique=True)
    purpose = _choice("audio_route", "purpose", ("stt", "tts"), blank=False)
    model = _required("audio_route", "model", 256)
    base_url = _required("audio_route", "base_url", 2048, verbose_name="base URL")
    source_sample_rate = _whole("audio_route", "source_sample_rate", help_text="Hz. Text-to-speech only.")
    default = models.BooleanField(default=False)
    auth_env = _text("audio_route", "auth_env", 128)
    timeout = _seconds("audio_route", "timeout")


class Host(NamedRow):
    """``[[hosts]]`` of the topology."""

    TABLE = "host"

    identifier = _identifier("host", unique=True)
    roles = _json("host", "roles", list)
    address = _text("host", "address", 253)
    os = _text("host", "os", 64)

    def as_table(self) -> Table:
        return {**super().as_table(), "roles": self.roles}


class GpuRole(NamedRow):
    """``[[gpu_roles]]`` of the topology: a GPU of one host by the part it plays."""

    TABLE = "gpu_role"

    identifier = _identifier("gpu_role", unique=True)
    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="gpu_roles")
    uuid = _required("gpu_role", "uuid", 128)
    vram_mib = _whole("gpu_role", "vram_mib", verbose_name="VRAM", help_text="MiB.")
    reserve_mib = _whole("gpu_role", "reserve_mib", verbose_name="reserve", help_text="MiB.")

    class Meta(NamedRow.Meta):
        verbose_name = "GPU role"


class Resource(NamedRow):
    """``[[resources]]`` of the topology: something that runs on a host."""

    TABLE = "resource"

    identifier = _identifier("resource", unique=True)
    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="resources")
    role = _required("resource", "role", 64)
    endpoint = _text("resource", "endpoint", 2048)
    endpoint_kind = _text("resource", "endpoint_kind", 64)
    workload = _text("resource", "workload", 128)
    gpu_role = models.ForeignKey(
        GpuRole, null=True, blank=True, on_delete=models.SET_NULL, related_name="resources"
    )
