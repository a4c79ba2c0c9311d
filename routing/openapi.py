"""How the REST part is described in OpenAPI 3.1: shapes of bodies as JSON Schema, and who may ask.

Views build their answers from explicit lists of keys, so there are no serializers to read shapes from: they
are written down here, closed wherever the answer is, and tests hold answers to them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import OpenApiParameter, extend_schema

from admission.core import MAX_WAIT_SECONDS
from routing.access import Scope

Schema = dict[str, Any]
View = TypeVar("View", bound=Callable[..., Any])

STRING: Final[Schema] = {"type": "string"}
INTEGER: Final[Schema] = {"type": "integer"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
MOMENT: Final[Schema] = {"type": "string", "format": "date-time"}
BASE64: Final[Schema] = {"type": "string", "contentEncoding": "base64"}
SHA256: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
SAFE_ID: Final[Schema] = {"type": "string", "pattern": r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"}
REASON: Final[Schema] = {"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,128}$"}


def closed(properties: Mapping[str, Schema], **optional: Schema) -> Schema:
    """An object with exactly ``properties``, and ``optional`` ones that may be absent."""
    return {
        "type": "object",
        "properties": {**properties, **optional},
        "required": list(properties),
        "additionalProperties": False,
    }


def choice(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def many(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, **bounds}


def by_name(values: Schema) -> Schema:
    """An object whose keys are names of the configuration."""
    return {"type": "object", "additionalProperties": values}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    """A shape of `COMPONENTS`, or of another room's."""
    return {"$ref": f"#/components/schemas/{name}"}


def query(name: str, schema: Schema, description: str, *, required: bool = False) -> OpenApiParameter:
    """A parameter of the query string."""
    return OpenApiParameter(name, schema, OpenApiParameter.QUERY, required=required, description=description)


_EVERYWHERE: Final = (400, 401, 403, 405, 406, 503)
"""What any operation may be refused with: its query, who asks, the method, Accept, and a process that stands
by for the ledger or whose management is at its limit."""


def operation(
    *,
    summary: str,
    answers: Mapping[int, Schema],
    refusals: Iterable[int] = (),
    parameters: Iterable[OpenApiParameter] = (),
    body: Mapping[str, Schema] | None = None,
    media_type: str = "application/json",
    operation_id: str | None = None,
    tag: str,
) -> Callable[[View], View]:
    """Describe a view's method: its answers by status, and the statuses of its refusals besides the usual.

    ``body`` is by media type. What the docstring of the method or its view says becomes the description.
    """
    statuses = sorted({*_EVERYWHERE, *refusals} - set(answers))
    responses: dict[Any, Schema] = {(status, media_type): shape for status, shape in answers.items()}
    responses |= {(status, "application/json"): ref("Error") for status in statuses}
    return extend_schema(
        operation_id=operation_id,
        summary=summary,
        request=None if body is None else dict(body),
        responses=responses,
        parameters=list(parameters),
        tags=[tag],
    )


# Shapes of the control plane -----------------------------------------------------------------------------

_SCOPE: Final = {"tier_id": STRING, "member_id": nullable(STRING)}
_LEDGER_FIELDS: Final = {
    "state": choice("admitting", "quiesced"),
    "reason": nullable(STRING),
    "active_requests": COUNT,
    "draining": BOOLEAN,
    "max_concurrency": nullable(COUNT),
}
_SCOPE_FIELDS: Final = {
    **_LEDGER_FIELDS,
    "ready": BOOLEAN,
    "readiness_state": choice("ready", "unavailable"),
    "readiness_reason": STRING,
    "expected_model": nullable(STRING),
    "observed_model": nullable(STRING),
}
_CHANGES: Final = {
    "changes": many(
        closed(
            {
                **_SCOPE,
                "change": STRING,
                "keys": many(STRING),
                "needs_drain": BOOLEAN,
                "starts_cold": BOOLEAN,
            }
        )
    ),
    "settings": many(STRING),
}
_SNAPSHOT: Final = {
    "object": choice("router_snapshot"),
    "id": COUNT,
    "created_at": MOMENT,
    "created_by": STRING,
    "source": STRING,
    "config_sha256": SHA256,
    "topology_sha256": nullable(SHA256),
    "tier_count": COUNT,
    "replica_tier_count": COUNT,
    "replica_member_count": COUNT,
    "active": BOOLEAN,
}
_KEY: Final = {
    "id": COUNT,
    "name": STRING,
    "prefix": STRING,
    "scopes": many(choice(*Scope)),
    "max_concurrency": nullable(COUNT),
    "expires_at": nullable(MOMENT),
    "created_at": MOMENT,
    "created_by": STRING,
    "revoked": BOOLEAN,
    "revoked_at": nullable(MOMENT),
    "last_used_at": nullable(MOMENT),
}
_ACTION: Final = choice("quiesce", "drain", "readmit")

COMPONENTS: Final[dict[str, Schema]] = {
    "Error": {
        "type": "object",
        "description": (
            "OpenAI's envelope. Beside the error there may be what the verb had come to: the result of a "
            "refused transition, the steps of an activation, the faults of a document."
        ),
        "properties": {
            "error": closed(
                {"message": STRING, "type": STRING, "param": nullable(STRING), "code": STRING},
            )
        },
        "required": ["error"],
    },
    "TransitionOrder": closed(
        {"action": choice("status", "quiesce", "drain", "readmit")},
        tier_id=SAFE_ID,
        member_id=SAFE_ID,
        reason=REASON,
        timeout={"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WAIT_SECONDS},
        confirm=BOOLEAN,
        dry_run=BOOLEAN,
        accept_unverified=BOOLEAN,
    ),
    "MemberStatus": closed({"member_id": STRING, **_SCOPE_FIELDS}),
    "TierStatus": closed({"tier_id": STRING, **_SCOPE_FIELDS}, members=many(ref("MemberStatus"))),
    "TransitionStatus": closed({"tiers": many(ref("TierStatus"))}),
    "MemberReading": closed({"member_id": STRING, **_LEDGER_FIELDS}),
    "TierReading": closed(
        {
            "tier_id": STRING,
            **_LEDGER_FIELDS,
            "member_active_requests": by_name(COUNT),
            "members": many(ref("MemberReading")),
        }
    ),
    "DrainResult": closed(
        {
            "drained": BOOLEAN,
            "timed_out": BOOLEAN,
            "snapshot": nullable({"anyOf": [ref("TierReading"), ref("MemberReading")]}),
        }
    ),
    "ReadmitResult": closed({"readmitted": BOOLEAN, "reason": STRING, "status": ref("TransitionStatus")}),
    "TransitionDone": closed(
        {
            "applied": {"type": "boolean", "const": True},
            "action": _ACTION,
            **_SCOPE,
            "result": nullable(
                {
                    "anyOf": [
                        ref(name) for name in ("TierStatus", "MemberStatus", "DrainResult", "ReadmitResult")
                    ]
                }
            ),
        }
    ),
    "TransitionPreview": closed(
        {
            "applied": {"type": "boolean", "const": False},
            "dry_run": {"type": "boolean", "const": True},
            "action": _ACTION,
            **_SCOPE,
        }
    ),
    "IntentDocument": closed(
        {
            "version": {"type": "integer", "const": 1},
            "tiers": by_name(closed({"state": choice("quiesced"), "reason": REASON})),
        },
        members=by_name(by_name(REASON)),
    ),
    "IntentImported": closed({"quiesced": many(closed(_SCOPE)), "ignored": COUNT}),
    "ApiKey": closed(_KEY),
    "ApiKeyMade": closed({**_KEY, "key": STRING}),
    "ApiKeyOrder": closed(
        {
            "name": {"type": "string", "minLength": 1, "maxLength": 100},
            "scopes": many(choice(*Scope), minItems=1),
        },
        max_concurrency=nullable({"type": "integer", "minimum": 1, "maximum": 100_000}),
        expires_at=nullable(MOMENT),
    ),
    "Snapshot": closed(_SNAPSHOT),
    "SnapshotDocuments": closed(
        {**_SNAPSHOT, "config": BASE64, "topology": nullable(BASE64), "overlay": nullable(BASE64)}
    ),
    "SnapshotUpload": closed(
        {"config": BASE64}, topology=nullable(BASE64), overlay=nullable(BASE64), dry_run=BOOLEAN
    ),
    "Promotion": closed(
        {
            "object": choice("promotion"),
            "id": COUNT,
            "tier_id": STRING,
            "resource_id": STRING,
            "state": STRING,
            "code": nullable(STRING),
            "promoted_snapshot_id": nullable(COUNT),
            "rollback_snapshot_id": nullable(COUNT),
            "serving": nullable(choice("promoted", "rollback", "neither")),
            "next_step": nullable(STRING),
            "actor": STRING,
            "through": STRING,
            "drain_timeout": nullable(NUMBER),
            "started_at": MOMENT,
            "ended_at": nullable(MOMENT),
            "steps": many({"type": "object"}),
        }
    ),
    "PromotionOrder": closed(
        {},
        action=choice("promote", "resume", "rollback"),
        tier_id=SAFE_ID,
        resource_id=SAFE_ID,
        drain_timeout={"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WAIT_SECONDS},
        confirm=BOOLEAN,
        dry_run=BOOLEAN,
    ),
    "PromotionPreview": closed(
        {
            "applied": {"type": "boolean", "const": False},
            "dry_run": {"type": "boolean", "const": True},
            "action": choice("promote", "resume", "rollback"),
        },
        promotion=ref("Promotion"),
        tier_id=STRING,
        resource_id=STRING,
        scopes=many(closed(_SCOPE)),
        **_CHANGES,
    ),
    "PromotionDone": closed(
        {
            "applied": {"type": "boolean", "const": True},
            "action": choice("promote", "resume", "rollback"),
            "promotion": ref("Promotion"),
        }
    ),
    "ActivationOrder": closed(
        {},
        confirm=BOOLEAN,
        dry_run=BOOLEAN,
        drain_timeout=nullable({"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WAIT_SECONDS}),
    ),
    "SnapshotPreview": closed(
        {
            "applied": {"type": "boolean", "const": False},
            "dry_run": {"type": "boolean", "const": True},
            "config_sha256": STRING,
            "topology_sha256": nullable(STRING),
            **_CHANGES,
            "scopes": many(closed(_SCOPE)),
        }
    ),
    "ActivationPreview": closed(
        {
            "applied": {"type": "boolean", "const": False},
            "dry_run": {"type": "boolean", "const": True},
            "snapshot_id": COUNT,
            **_CHANGES,
            "scopes": many(closed(_SCOPE)),
        }
    ),
    "ActivationDone": closed(
        {
            "applied": {"type": "boolean", "const": True},
            "snapshot_id": COUNT,
            "previous_snapshot_id": nullable(COUNT),
            "config_sha256": SHA256,
            **_CHANGES,
            "steps": many(
                closed({"step": STRING, "outcome": STRING}, tier_id=STRING, member_id=nullable(STRING))
            ),
        }
    ),
}


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # theirs has no types
    """A key goes into either of two headers."""

    target_class = "routing.authentication.BearerAuthentication"
    name = ["bearer", "x-api-key"]

    def get_security_definition(self, auto_schema: object) -> list[Schema]:
        return [
            {"type": "http", "scheme": "bearer"},
            {"type": "apiKey", "in": "header", "name": "x-api-key"},
        ]

    def get_security_requirement(self, auto_schema: object) -> list[Schema]:
        return [{name: []} for name in self.name]
