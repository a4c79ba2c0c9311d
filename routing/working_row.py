"""What the working-copy models share: a row that stands for one table of a document while it is edited.

The rules are those of `config` and `topology`. A column is held to its key's rule by a validator, a row to
its table's rules by ``clean``; what only the whole document shows is found when it is published. An empty
column is a key that is not configured.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import models
from django.utils.deconstruct import deconstructible

from routing import config, topology
from routing.documents import Fault, Invalid, render_path
from routing.rendering import Table, is_absent


@deconstructible
class KeyRule:
    """A validator: the rule that `config` or `topology` has for ``key`` in a table of that name."""

    def __init__(self, table: str, key: str) -> None:
        self.table = table
        self.key = key

    def __call__(self, value: object) -> None:
        check = config.check_field if self.table in config.FIELD_RULES else topology.check_field
        try:
            check(self.table, self.key, value)
        except Invalid as error:
            raise ValidationError(
                [f"{render_path(path)}: {message}" if path else message for path, message in error.problems]
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRule) and (self.table, self.key) == (other.table, other.key)

    def __hash__(self) -> int:
        return hash((self.table, self.key))


class WorkingRow(models.Model):
    """One table of a document. ``COLUMNS`` names the column of each key that has another name."""

    TABLE: ClassVar[str]
    COLUMNS: ClassVar[Mapping[str, str]] = {"id": "identifier"}

    class Meta:
        abstract = True

    def as_table(self) -> Table:
        """The table as TOML would give it, absent keys left out."""
        return self._values(self.TABLE)

    def table_faults(self) -> tuple[Fault, ...]:
        """What is wrong with the row on its own, under the paths of its table."""
        check = config.table_faults if self.TABLE in config.FIELD_RULES else topology.table_faults
        return check(self.TABLE, self.as_table())

    def clean(self) -> None:
        """Hold the row to its table's rules. What its columns' own validators tell is not told twice."""
        errors: dict[str, list[str]] = {}
        for fault in self.table_faults():
            column, message = self.column_of(fault)
            if column == NON_FIELD_ERRORS or self._is_sound(column):
                errors.setdefault(column, []).append(message)
        if errors:
            raise ValidationError(errors)

    def column_of(self, fault: Fault) -> tuple[str, str]:
        """Where to show a fault of this row's table: its column, and the message with the place below it."""
        if fault.path == "document":
            return NON_FIELD_ERRORS, fault.message
        key = fault.path.partition(".")[0].partition("[")[0]
        below = fault.path[len(key) :].removeprefix(".")
        return self.COLUMNS.get(key, key), f"{below}: {fault.message}" if below else fault.message

    def _values(self, table: str) -> Table:
        rules: Mapping[str, object] = config.FIELD_RULES.get(table) or topology.FIELD_RULES[table]
        values = {key: getattr(self, self.COLUMNS.get(key, key)) for key in rules}
        return {
            key: value.identifier if isinstance(value, NamedRow) else value
            for key, value in values.items()
            if not is_absent(value)
        }

    def _is_sound(self, column: str) -> bool:
        field = self._meta.get_field(column)
        assert isinstance(field, models.Field)
        try:
            field.clean(getattr(self, field.attname), self)
        except ValidationError:
            return False
        return True


class NamedRow(WorkingRow):
    """A row with an ``id`` of its own, in the place among its kind that ``position`` gives it."""

    identifier: "models.CharField[Any, Any]"
    position = models.PositiveIntegerField(default=0, help_text="Rows are published in this order.")

    class Meta:
        abstract = True
        ordering = ["position", "id"]

    def __str__(self) -> str:
        return str(self.identifier)
