"""What the database keeps of decisions: one row a record, written behind the requests and never by them."""

from dataclasses import replace

from django.db import models

from routing.records import DecisionRecord, record_from_mapping


class DecisionEntry(models.Model):
    """One decision record (see `routing.records`), flat, so that a list can be filtered and searched.

    An absent name is the empty string. ``outcome`` and ``reason`` are the attempt's; a replica tier's refusal
    made none, so its outcome is ``refused`` and its reason the recorded selection. ``freshness`` is how far
    the selected member's pressure could be believed when it was selected; empty without scheduler evidence.
    """

    class Outcome(models.TextChoices):
        SERVED = "served", "served"
        ERROR = "error", "error"
        SKIPPED = "skipped", "skipped"
        REFUSED = "refused", "refused"

    class Freshness(models.TextChoices):
        FRESH = "fresh", "fresh"
        STALE = "stale", "stale"
        FAILED = "failed", "failed"
        UNKNOWN = "unknown", "unknown"

    recorded_at = models.DateTimeField(db_index=True)
    route = models.CharField(max_length=128, blank=True, db_index=True)
    kind = models.CharField(max_length=16, blank=True)
    requested_tier = models.CharField(max_length=64, blank=True, db_index=True)
    served_tier = models.CharField(max_length=64, blank=True)
    outcome = models.CharField(max_length=8, choices=Outcome)
    reason = models.CharField(max_length=40, blank=True)
    replica_member_id = models.CharField("member", max_length=64, blank=True)
    replica_selection = models.CharField("selection", max_length=20, blank=True)
    freshness = models.CharField(max_length=8, blank=True, choices=Freshness)
    prompt_tokens = models.PositiveBigIntegerField()
    completion_tokens = models.PositiveBigIntegerField()
    request_bytes = models.PositiveBigIntegerField()
    response_bytes = models.PositiveBigIntegerField()
    latency_ms = models.FloatField()
    request_id = models.CharField(max_length=128, blank=True, db_index=True)
    workbench_run_id = models.CharField(max_length=128, blank=True)
    task_id = models.CharField(max_length=128, blank=True)
    replica_scheduler = models.JSONField(null=True, editable=False)
    """Scheduler evidence in its canonical form (four keys, seven in each score), or null."""

    class Meta:
        ordering = ["-id"]
        verbose_name = "decision"

    def __str__(self) -> str:
        return self.request_id or f"decision {self.pk}"

    def as_record(self) -> DecisionRecord:
        """The canonical record in this row. What was changed into something else meanwhile is left out."""
        attempt = {
            "tier_id": self.requested_tier,
            "outcome": self.outcome,
            "succeeded": self.outcome == self.Outcome.SERVED,
            "reason": self.reason,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
        record = record_from_mapping(
            {
                "route": self.route,
                "kind": self.kind,
                "requested_tier": self.requested_tier,
                "served_tier": self.served_tier,
                "attempts": [] if self.outcome == self.Outcome.REFUSED else [attempt],
                "total_prompt_tokens": self.prompt_tokens,
                "total_completion_tokens": self.completion_tokens,
                "request_bytes": self.request_bytes,
                "response_bytes": self.response_bytes,
                "latency_ms": self.latency_ms,
                "request_id": self.request_id,
                "workbench_run_id": self.workbench_run_id,
                "task_id": self.task_id,
                "replica_member_id": self.replica_member_id or None,
                "replica_selection": self.replica_selection or None,
                "replica_scheduler": self.replica_scheduler,
            }
        )
        assert record is not None, "a mapping always makes a record"
        return replace(record, recorded_at=self.recorded_at.timestamp())
