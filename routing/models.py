"""What the database keeps of routing: captured snapshots, and which one is active."""

from django.db import models


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
