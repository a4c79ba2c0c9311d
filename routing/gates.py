"""Semantic gates: whether a tier may serve a request at all, and how much output it may ask for.

Pure arithmetic over a request's `Demand` and a tier's configuration: no lock, no I/O, no clock. The
gates see the whole request before any readiness, admission or selection, and they are the tier's, so that
every member of a replica tier answers to the same ones (replica contract: shared policy).

The gates run in this order and the first refusal stands: context, media, tools.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Literal, NamedTuple

from routing.config import Tier

BYTES_PER_TOKEN: Final = 8
"""UTF-8 bytes of text that one token is taken to hold: far more than tokenizers manage on ordinary text,
so that a prompt refused here is one that the engine would refuse as well."""

ESTIMATED_BYTES_PER_TOKEN: Final = 4
"""What one token holds as a rule: for an estimate, not for a refusal."""

ESTIMATED_IMAGE_TOKENS: Final = 1000
"""What an image takes where the tier does not say."""

RefusalReason = Literal[
    "over_context",
    "media_admission_image_limit",
    "media_admission_video_limit",
    "media_admission_invalid_policy",
    "tools_unsupported",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a request asks of a tier, counted by the wire that parsed it.

    ``text_bytes`` is the UTF-8 length of all text that becomes prompt, or 0 where `context_needs_count`
    said that no count is needed. ``images`` and ``videos`` are numbers of media parts. ``tools`` says
    whether the request offers tools or carries tool traffic. All counts are non-negative.
    """

    text_bytes: int = 0
    images: int = 0
    videos: int = 0
    tools: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRefusal:
    """Why a gate refused: what the caller is told, and ``reason``, what the evidence keeps.

    ``code`` and ``param`` are those of an OpenAI error body; ``message`` holds limits of the tier and
    nothing of the request.
    """

    status: HTTPStatus
    code: str
    reason: RefusalReason
    message: str
    param: str | None = None


class OutputCap(NamedTuple):
    """The output limit to send upstream (None: send none), and whether it is not what the caller asked."""

    limit: int | None
    clamped: bool


_POLICY_KEYS = ("image_limit", "video_limit", "image_tokens_estimate", "video_tokens_estimate")


class _MediaPolicy(NamedTuple):
    """The values of ``_POLICY_KEYS`` in ``params.capacity``."""

    image_limit: int
    video_limit: int
    image_tokens: int
    video_tokens: int


def context_needs_count(tier: Tier, body_bytes: int) -> bool:
    """Whether a body of ``body_bytes`` could hold more text than ``tier``'s context gate lets through.

    JSON never spells a text in fewer bytes than UTF-8 does, so a body below the limit spares the count.
    """
    return body_bytes > tier.context_limit * BYTES_PER_TOKEN


def check_gates(tier: Tier, demand: Demand) -> GateRefusal | None:
    """The first gate of ``tier`` that refuses ``demand``, or None when all let it through.

    The context gate compares a low estimate of the prompt (text bytes / 8, plus the configured estimate of
    each medium where media admission is on) with ``context_limit`` and refuses only what is over it.
    """
    declared, policy = _media_policy(tier)
    media_tokens = 0
    if policy is not None:
        media_tokens = demand.images * policy.image_tokens + demand.videos * policy.video_tokens
    # Compared in bytes, so that no rounding decides.
    if demand.text_bytes + media_tokens * BYTES_PER_TOKEN > tier.context_limit * BYTES_PER_TOKEN:
        return GateRefusal(
            status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="context_length_exceeded",
            reason="over_context",
            message=f"The request is larger than this model's context of {tier.context_limit} tokens.",
        )
    if declared and (demand.images or demand.videos):
        refusal = _check_media(policy, demand)
        if refusal is not None:
            return refusal
    if demand.tools and not tier.tool_support:
        return GateRefusal(
            status=HTTPStatus.BAD_REQUEST,
            code="tools_unsupported",
            reason="tools_unsupported",
            message="This model does not support tools.",
            param="tools",
        )
    return None


def estimate_prompt(tier: Tier, demand: Demand) -> int:
    """Roughly how many tokens of prompt ``demand`` makes. Its text must have been counted."""
    policy = _media_policy(tier)[1]
    images = ESTIMATED_IMAGE_TOKENS if policy is None else policy.image_tokens
    videos = 0 if policy is None else policy.video_tokens
    text = -(-demand.text_bytes // ESTIMATED_BYTES_PER_TOKEN)
    return text + demand.images * images + demand.videos * videos


def output_cap(max_output_tokens: int | None, asked: int | None) -> OutputCap:
    """The output limit for a request that asked for ``asked`` tokens (None: it set no limit; else over 0).

    A tier's ``max_output_tokens`` lowers a larger limit and stands in for a missing one. Both count as
    clamped, since the caller is told of both; a tier without one changes nothing.
    """
    if max_output_tokens is None or (asked is not None and asked <= max_output_tokens):
        return OutputCap(asked, False)
    return OutputCap(max_output_tokens, True)


def _check_media(policy: _MediaPolicy | None, demand: Demand) -> GateRefusal | None:
    if policy is None:
        return _media_refusal("media_admission_invalid_policy", "This model's media policy is incomplete.")
    if demand.images > policy.image_limit:
        return _media_refusal(
            "media_admission_image_limit",
            f"Too many images: this model takes {policy.image_limit} a request.",
        )
    if demand.videos > policy.video_limit:
        return _media_refusal(
            "media_admission_video_limit",
            f"Too many videos: this model takes {policy.video_limit} a request.",
        )
    return None


def _media_refusal(reason: RefusalReason, message: str) -> GateRefusal:
    return GateRefusal(
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="media_limit_exceeded",
        reason=reason,
        message=message,
    )


def _media_policy(tier: Tier) -> tuple[bool, _MediaPolicy | None]:
    """Whether media admission is on, and its policy when all four numbers of it are configured."""
    capacity = tier.params.get("capacity")
    if not isinstance(capacity, Mapping) or capacity.get("media_admission_enabled") is not True:
        return False, None
    numbers = [value for key in _POLICY_KEYS if type(value := capacity.get(key)) is int]
    return True, _MediaPolicy(*numbers) if len(numbers) == len(_POLICY_KEYS) else None
