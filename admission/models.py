"""What the database keeps of admission: which scopes stay quiesced, whatever happens to the process."""

from django.db import models
from django.utils import timezone


class AdmissionIntent(models.Model):
    """One quiesced scope: a tier, or one member of it. A scope that admits has no row.

    Rows of scopes that are not configured are kept: they hold when the scope comes back.
    """

    tier_id = models.CharField("tier", max_length=64)
    member_id = models.CharField("member", max_length=64, blank=True)
    """Empty for the tier itself: databases count two NULLs as different, which a unique scope can't have."""
    reason = models.CharField(max_length=128)
    actor = models.CharField(max_length=150)
    since = models.DateTimeField(default=timezone.now)
    """When the scope was quiesced; quiescing it again for another reason leaves this alone."""

    class Meta:
        ordering = ["tier_id", "member_id"]
        constraints = [
            models.UniqueConstraint(fields=["tier_id", "member_id"], name="one_intent_per_scope"),
        ]
        permissions = [("operate_tier", "Can quiesce, drain and readmit tiers and members")]

    def __str__(self) -> str:
        return f"{self.tier_id}/{self.member_id}" if self.member_id else self.tier_id
