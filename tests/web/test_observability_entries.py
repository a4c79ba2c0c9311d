"""The decision table: batches, retention, and databases that fail."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from routing.records import DecisionRecord, canonical_record
from telemetry import entries
from telemetry.entries import EntryWriter, trim
from telemetry.models import DecisionEntry
from tests.unit.routing.records_samples import CAPACITY, DIRECT, DIRECT_REFUSED, REFUSED, ROUND_ROBIN
from tests.web.control_support import failing_database

PATIENCE = 10.0
TABLE = "telemetry_decisionentry"


def numbered(count: int, *, first: int = 0) -> list[DecisionRecord]:
    return [
        canonical_record(replace(DIRECT, request_id=f"req-{number}"))
        for number in range(first, first + count)
    ]


def kept() -> list[str]:
    return list(DecisionEntry.objects.order_by("pk").values_list("request_id", flat=True))


@pytest.fixture
def own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's thread closes its connection; a test that shares its own does without that."""
    monkeypatch.setattr(entries, "close_old_connections", lambda: None)


@pytest.mark.django_db
def test_what_is_written_can_be_read_back(own_connection: None) -> None:
    records = [canonical_record(each) for each in (DIRECT, DIRECT_REFUSED, ROUND_ROBIN, CAPACITY, REFUSED)]
    EntryWriter().write(records)
    assert [entry.as_record() for entry in DecisionEntry.objects.order_by("pk")] == records


@pytest.mark.django_db
def test_a_batch_is_inserted_as_a_whole_and_retention_is_looked_at_rarely(own_connection: None) -> None:
    writer = EntryWriter()
    writer.write(numbered(400))
    with CaptureQueriesContext(connection) as queries:
        writer.write(numbered(400, first=400))
    written = [query["sql"] for query in queries if "SAVEPOINT" not in query["sql"]]
    assert [statement[:22] for statement in written] == ["400 times: INSERT INTO"]


@pytest.mark.django_db
@pytest.mark.parametrize(("retention", "left"), [(5, 5), (12, 12), (13, 12), (1, 1)])
def test_retention_is_by_count_and_the_oldest_go(retention: int, left: int, own_connection: None) -> None:
    EntryWriter().write(numbered(12))
    assert trim(retention) == 12 - left
    assert kept() == [f"req-{number}" for number in range(12 - left, 12)]


@pytest.mark.django_db
def test_retention_goes_in_chunks_and_counts_rows_and_not_ids(
    own_connection: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "TRIM_CHUNK", 3)
    EntryWriter().write(numbered(20))
    # Gaps in the ids, as a rolled-back transaction leaves them.
    DecisionEntry.objects.filter(request_id__in=[f"req-{number}" for number in range(10, 15)]).delete()
    with CaptureQueriesContext(connection) as queries:
        assert trim(6) == 9
    assert sum("DELETE" in query["sql"] for query in queries) == 3
    assert kept() == ["req-9", *(f"req-{number}" for number in range(15, 20))]


@pytest.mark.django_db
def test_the_writer_keeps_the_table_at_its_retention(
    own_connection: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "TRIM_EVERY", 10)
    writer = EntryWriter(retention=25)
    for first in range(0, 100, 5):
        writer.write(numbered(5, first=first))
        assert DecisionEntry.objects.count() <= 25 + 10
    assert kept()[-1] == "req-99"


@pytest.mark.django_db(transaction=True)
def test_a_trim_that_fails_does_not_cost_the_batch() -> None:
    writer = EntryWriter(retention=2)
    EntryWriter().write(numbered(4))

    def refuse(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("DELETE"):
            raise OperationalError("database is locked")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        writer.write(numbered(1, first=4))
    assert kept() == [f"req-{number}" for number in range(5)]
    writer.write(numbered(1, first=5))
    assert kept() == ["req-4", "req-5"]


@pytest.mark.django_db(transaction=True)
class TestThread:
    """The writer in its own thread, on its own connection."""

    @pytest.fixture
    def writer(self) -> Iterator[EntryWriter]:
        made = EntryWriter(linger=0.01)
        yield made
        made.stop(PATIENCE)

    def test_offered_records_are_rows_once_it_has_stopped(self, writer: EntryWriter) -> None:
        for record in numbered(1_200):
            assert writer.offer(record)
        writer.start()
        assert writer.stop(PATIENCE)
        assert (writer.written, writer.lost) == (1_200, 0)
        assert DecisionEntry.objects.count() == 1_200
        assert kept()[:2] == ["req-0", "req-1"]

    def test_a_failing_database_costs_counted_entries_and_the_writer_goes_on(
        self, writer: EntryWriter, caplog: pytest.LogCaptureFixture
    ) -> None:
        with failing_database(TABLE):
            for record in numbered(3):
                writer.offer(record)
            writer.run_once()
        assert (writer.written, writer.failed) == (0, 3)
        for record in numbered(2, first=3):
            writer.offer(record)
        writer.run_once()
        assert (writer.written, writer.failed) == (2, 3)
        assert kept() == ["req-3", "req-4"]
        said = [record.getMessage() for record in caplog.records]
        assert said == [
            "anvil-decision-entries cannot write: entries are lost until it can",
            "anvil-decision-entries writes again, 3 entries were lost",
        ]
        assert "secret" not in caplog.text

    def test_a_connection_that_broke_is_replaced(self, writer: EntryWriter) -> None:
        """The database went away and came back: the batch in between is lost, the connection is a new one."""
        writer.offer(numbered(1)[0])
        writer.run_once()
        first = connection.connection
        with failing_database(TABLE):
            writer.offer(numbered(1, first=1)[0])
            writer.run_once()
        assert connection.connection is None
        writer.offer(numbered(1, first=2)[0])
        writer.run_once()
        assert connection.connection is not first
        assert kept() == ["req-0", "req-2"]

    @pytest.mark.requirement("C-R012")
    def test_a_full_queue_refuses_at_once_while_the_database_hangs(self) -> None:
        entered, release = threading.Event(), threading.Event()

        class Hanging(EntryWriter):
            def write(self, batch: Any) -> None:
                entered.set()
                release.wait(PATIENCE)
                raise OperationalError("the database is gone")

        writer = Hanging(capacity=500, linger=0.0)
        writer.start()
        records = numbered(1_000)
        writer.offer(records[0])
        assert entered.wait(PATIENCE)
        accepted = [writer.offer(record) for record in records]
        assert accepted == [True] * 500 + [False] * 500
        assert writer.dropped == 500
        release.set()
        assert writer.stop(PATIENCE)
        assert writer.lost == 1_001


@pytest.mark.django_db
def test_a_list_of_entries_asks_once(
    own_connection: None, django_assert_num_queries: Callable[..., Any]
) -> None:
    EntryWriter().write(numbered(50))
    with django_assert_num_queries(1):
        assert [str(entry) for entry in DecisionEntry.objects.all()[:2]] == ["req-49", "req-48"]
