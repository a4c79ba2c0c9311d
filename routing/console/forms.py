"""Forms of the console. Their rules are those of the services; here they are told at the field."""

from collections.abc import Iterable
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError

from admission.core import MAX_WAIT_SECONDS
from admission.identifiers import is_reason_code
from routing.documents import MAX_DOCUMENT_BYTES
from routing.orders import DEFAULT_DRAIN_TIMEOUT

REASONS: Final = ("maintenance", "upgrade", "investigation")
"""Codes that are suggested; any other of the grammar is as good."""


def check_reason(value: object) -> None:
    if not is_reason_code(value):
        raise ValidationError("One word of letters, digits, dots, dashes and underscores, at most 128.")


class ConsoleForm(forms.Form):
    """Labels without a colon: each stands above its field."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **kwargs})


class QuiesceForm(ConsoleForm):
    """Why a scope is quiesced. The page has the list of suggestions beside it."""

    reason = forms.CharField(
        max_length=128,
        validators=[check_reason],
        widget=forms.TextInput(
            attrs={"list": "reasons", "autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}
        ),
        help_text=f"One word that the next shift understands, such as {', '.join(REASONS)}.",
    )


class DrainForm(ConsoleForm):
    """How long a drain waits."""

    timeout = forms.FloatField(
        label="Wait at most",
        initial=int(DEFAULT_DRAIN_TIMEOUT),
        min_value=0.1,
        max_value=MAX_WAIT_SECONDS,
        help_text="Seconds, at most 3600. Afterwards what still runs goes on, and the scope stays quiesced.",
    )


class ReadmitForm(ConsoleForm):
    """What a readmit may go without."""

    accept_unverified = forms.BooleanField(
        label="Readmit although nothing can be verified",
        required=False,
        help_text="Only of effect where no model identity is configured. A probe that fails still refuses.",
    )


class DocumentField(forms.FileField):
    """A TOML document, read whole as it is. Its bytes are what is validated and kept."""

    widget = forms.FileInput(attrs={"accept": ".toml,application/toml,text/plain"})

    def clean(self, data: Any, initial: Any = None) -> bytes | None:
        upload = super().clean(data, initial)
        if not upload:
            return None
        # One byte more than may be, so that a document that is too large is told as such.
        content: bytes = upload.read(MAX_DOCUMENT_BYTES + 1)
        return content


class ImportForm(ConsoleForm):
    """The documents of a configuration, exactly as their files have them."""

    config = DocumentField(label="Router configuration", help_text="TOML, at most 1 MiB.")
    topology = DocumentField(
        label="Topology",
        required=False,
        help_text="Needed where a tier has replicas; says where members run.",
    )
    overlay = DocumentField(
        label="Topology overlay",
        required=False,
        help_text="Replaces or adds entries of the topology by their id.",
    )


class ActivateForm(ConsoleForm):
    """Whether an activation brings scopes to rest by itself, and how long it waits for that."""

    drain_timeout = forms.FloatField(
        label="Drain for at most",
        required=False,
        min_value=0.1,
        max_value=MAX_WAIT_SECONDS,
        help_text="Seconds, at most 3600.",
    )


class PromoteForm(ConsoleForm):
    """Which direct tier moves to which resource. The choices are those of the active configuration."""

    tier = forms.ChoiceField(help_text="A direct tier whose identity can be verified.")
    resource = forms.ChoiceField(help_text="Where it is served from then on.")
    drain_timeout = forms.FloatField(
        label="Drain for at most",
        initial=int(DEFAULT_DRAIN_TIMEOUT),
        min_value=0.1,
        max_value=MAX_WAIT_SECONDS,
        help_text="Seconds, at most 3600. If requests still run then, nothing is changed.",
    )

    def __init__(self, *args: Any, tiers: Iterable[str], resources: Iterable[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, choices in (("tier", tiers), ("resource", resources)):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = [(choice, choice) for choice in choices]
