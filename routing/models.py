"""What the database keeps of routing: captured snapshots and which one is active, API keys, what was done."""

from django.db import models
from django.utils import timezone


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
