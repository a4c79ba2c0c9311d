"""The way to purpose models and audio routes: one look-up by name, one attempt, one record.

They have no alias, tier, gate, readiness or ceiling, and never become a chat request: a name that is not
configured for the wire is a 404 that says which are.

    embeddings, rerank       by the model's exact name
    transcriptions, speech   by the model's exact name or the route's id; without either, the default route

Where two audio routes of one purpose share a model, the default one has the name, else the first.
"""

import http
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from routing.config import AudioRoute, PurposeModel, RouterConfig, RouterSettings
from routing.dialects.base import CallerRequest, Dialect, Failure, Wire
from routing.dialects.purposes import OPENAI
from routing.passage import Caller, MemberTarget, Passage, Refused, Reply, Services, reply
from routing.relay import Dispatch

WIRES: Final[Mapping[str, Wire]] = MappingProxyType(
    {"embedding": "embeddings", "rerank": "rerank", "stt": "transcriptions", "tts": "speech"}
)
"""The wire of each kind of purpose model and each purpose of an audio route."""

_NOUNS: Final[Mapping[Wire, str]] = MappingProxyType(
    {
        "embeddings": "embedding",
        "rerank": "rerank",
        "transcriptions": "speech-to-text",
        "speech": "text-to-speech",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PurposeRoute:
    """One purpose model or audio route, prepared for dispatch; timeouts are seconds.

    Its own ``timeout`` bounds every silence of its upstream, before the first byte too; without one the
    router's two apply.
    """

    id: str
    model: str
    target: MemberTarget
    first_byte_timeout: float
    relay_timeout: float

    @classmethod
    def of(
        cls, entry: PurposeModel | AudioRoute, router: RouterSettings, environ: Mapping[str, str]
    ) -> "PurposeRoute":
        return cls(
            id=entry.id,
            model=entry.model,
            target=MemberTarget.at(entry.base_url, auth_env=entry.auth_env, environ=environ),
            first_byte_timeout=entry.timeout or router.first_byte_timeout,
            relay_timeout=entry.timeout or router.relay_timeout,
        )


class _Names:
    """What can be asked for on one wire."""

    def __init__(self) -> None:
        self.routes: dict[str, PurposeRoute] = {}
        self.models: list[str] = []
        """The models' names in the order of the configuration, each once."""
        self.default: PurposeRoute | None = None

    def find(self, name: str) -> PurposeRoute | None:
        return self.routes.get(name) if name else self.default

    def missing(self, wire: Wire, name: str) -> Failure:
        """Why `find` found nothing under ``name``."""
        noun = _NOUNS[wire]
        configured = f"Configured: {', '.join(self.models)}."
        if self.models and not name:
            return Failure(
                status=http.HTTPStatus.BAD_REQUEST,
                code="invalid_request",
                message=f"'model' must name a {noun} model, since none is the default. {configured}",
                param="model",
            )
        return Failure(
            status=http.HTTPStatus.NOT_FOUND,
            code="model_not_found",
            message=f"No such {noun} model. {configured}"
            if self.models
            else f"No {noun} model is configured.",
            param="model",
        )


class Purposes:
    """The purpose models and audio routes of one configuration. Immutable."""

    def __init__(self, config: RouterConfig, services: Services, environ: Mapping[str, str]) -> None:
        self._services = services
        self._names: dict[Wire, _Names] = {wire: _Names() for wire in WIRES.values()}
        for model in config.purpose_models:
            names = self._names[WIRES[model.kind]]
            names.models.append(model.model)
            names.routes[model.model] = PurposeRoute.of(model, config.router, environ)
        self._add_audio(config, environ)

    def _add_audio(self, config: RouterConfig, environ: Mapping[str, str]) -> None:
        prepared = [
            (self._names[WIRES[entry.purpose]], entry, PurposeRoute.of(entry, config.router, environ))
            for entry in config.audio_routes
        ]
        for names, entry, route in prepared:
            if entry.model not in names.models:
                names.models.append(entry.model)
            if entry.default:
                names.default = names.routes[entry.model] = route
        for names, entry, route in prepared:
            names.routes.setdefault(entry.model, route)
        for names, entry, route in prepared:
            names.routes.setdefault(entry.id, route)

    def serves(self, wire: Wire) -> bool:
        """Whether requests of ``wire`` go this way."""
        return wire in self._names

    def handle(self, dialect: Dialect, request: CallerRequest, caller: Caller) -> Reply | Dispatch | None:
        """Serve one request of a wire that goes this way, as `Gateway.handle` does."""
        names = self._names[dialect.wire]
        route = names.find(request.alias)
        if route is None:
            failure = names.missing(dialect.wire, request.alias)
            if failure.status == http.HTTPStatus.NOT_FOUND:
                self._services.evidence.refused(None, Refused.UNKNOWN_MODEL, caller.principal.name)
            return reply(dialect, failure)
        passage = Passage(self._services, dialect, request, caller, route=route.id, tier_id=route.id)
        return passage.dispatch(
            request.prepare(OPENAI, model=route.model),
            route.target,
            None,
            first_byte_timeout=route.first_byte_timeout,
            relay_timeout=route.relay_timeout,
        )
