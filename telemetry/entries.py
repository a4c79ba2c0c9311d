"""The decision table: records in batches, behind the requests.

`EntryWriter` is a `BoundedWriter`: the queue is bounded, what does not fit or cannot be written is counted,
and a database that is slow, locked or gone holds up this module's own thread and nobody else's.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from django.db import Error, close_old_connections, connection, transaction

from admission.replica_scheduler import decision_as_dict
from routing.records import DecisionRecord, canonical_record
from telemetry.models import DecisionEntry
from telemetry.writer import BoundedWriter

DEFAULT_RETENTION: Final = 100_000
"""Rows that are kept; the oldest go first."""

TRIM_EVERY: Final = 1_000
"""Rows written between two looks at the retention, so the table may hold that many more for a while."""

TRIM_CHUNK: Final = 2_000
"""Rows deleted in one statement: SQLite has one writer, and people are waiting for it, too."""

BATCH_SIZE: Final = 500


class EntryWriter(BoundedWriter[DecisionRecord]):
    """Writes each record as a row and keeps the newest ``retention`` rows."""

    def __init__(
        self, *, retention: int = DEFAULT_RETENTION, capacity: int = 10_000, linger: float = 0.5
    ) -> None:
        if retention < 1:
            raise ValueError("retention must be at least 1")
        super().__init__("anvil-decision-entries", capacity=capacity, batch_size=BATCH_SIZE, linger=linger)
        self._retention = retention
        # The first batch looks at once: the retention may have been lowered since the last start.
        self._since_trim = TRIM_EVERY

    def write(self, batch: Sequence[DecisionRecord]) -> None:
        close_old_connections()
        try:
            insert(batch)
        except BaseException:
            # Whatever state it is in: the next batch opens a new one.
            connection.close()
            raise
        self._since_trim += len(batch)
        if self._since_trim < TRIM_EVERY:
            return
        try:
            trim(self._retention)
            self._since_trim = 0
        except Error:
            # This batch is written; the next one tries again.
            connection.close()

    def close(self) -> None:
        connection.close()


def insert(records: Sequence[DecisionRecord]) -> None:
    """Write one row a record, all or none, by one prepared statement.

    ``bulk_create`` makes a model and an expression tree of every row: five times the work, and it is done
    under the interpreter lock that requests wait for.
    """
    fields = [field for field in DecisionEntry._meta.concrete_fields if not field.primary_key]
    quote = connection.ops.quote_name
    columns = ", ".join(quote(field.attname) for field in fields)
    places = ", ".join(["%s"] * len(fields))
    table = quote(DecisionEntry._meta.db_table)
    statement = f"INSERT INTO {table} ({columns}) VALUES ({places})"  # noqa: S608  # the names are the model's
    # What no database takes as it is, the way ``get_db_prep_save`` would give it.
    moment = connection.ops.adapt_datetimefield_value
    rows = []
    for record in records:
        values = values_of(record)
        values["recorded_at"] = moment(values["recorded_at"])
        if values["replica_scheduler"] is not None:
            values["replica_scheduler"] = msgspec.json.encode(values["replica_scheduler"]).decode()
        rows.append([values[field.attname] for field in fields])
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(statement, rows)


def values_of(record: DecisionRecord) -> dict[str, Any]:
    """The columns of ``record``'s row; canonical first, so that nothing else can be in it."""
    record = canonical_record(record)
    attempt = record.attempts[-1] if record.attempts else None
    decision = record.replica_scheduler
    return {
        "recorded_at": datetime.fromtimestamp(record.recorded_at or 0.0, UTC),
        "route": record.route or "",
        "kind": record.kind or "",
        "requested_tier": record.requested_tier or "",
        "served_tier": record.served_tier or "",
        "outcome": attempt.outcome if attempt is not None else DecisionEntry.Outcome.REFUSED.value,
        "reason": attempt.reason if attempt is not None else record.replica_selection or "",
        "replica_member_id": record.replica_member_id or "",
        "replica_selection": record.replica_selection or "",
        "freshness": decision.scores[0].freshness.value if decision is not None else "",
        "prompt_tokens": record.total_prompt_tokens,
        "completion_tokens": record.total_completion_tokens,
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
        "latency_ms": record.latency_ms,
        "request_id": record.request_id or "",
        "workbench_run_id": record.workbench_run_id or "",
        "task_id": record.task_id or "",
        "replica_scheduler": None if decision is None else decision_as_dict(decision, checked=True),
    }


def trim(retention: int) -> int:
    """Delete all but the newest ``retention`` rows (at least 1), in chunks; how many went."""
    newest = DecisionEntry.objects.order_by("-pk").values_list("pk", flat=True)
    limit = next(iter(newest[retention : retention + 1]), None)
    if limit is None:
        return 0
    doomed = DecisionEntry.objects.order_by("pk").filter(pk__lte=limit).values_list("pk", flat=True)
    gone = 0
    while chunk := list(doomed[:TRIM_CHUNK]):
        # By range: a list of ids would meet SQLite's limit of parameters.
        gone += DecisionEntry.objects.filter(pk__lte=chunk[-1]).delete()[0]
    return gone
