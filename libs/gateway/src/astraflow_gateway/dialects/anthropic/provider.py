"""Errors and models as Anthropic's API has them."""

from __future__ import annotations

from collections.abc import Sequence

from astraflow_gateway.dialects.dialect import Json, Model
from astraflow_gateway.requests import BadRequest, ContextExceeded

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
}
_EPOCH = "1970-01-01T00:00:00Z"


class Anthropic:
    """The shapes of Anthropic's API, version 2023-06-01."""

    def error(self, refused: BadRequest) -> Json:
        """An error, by the type that its status has."""
        message = refused.message
        if isinstance(refused, ContextExceeded):
            # Agents look for these words, to shorten what they send.
            message = f"prompt is too long: {refused.prompt} tokens > {refused.context} maximum"
        kind = _TYPES.get(refused.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def model(self, model: Model) -> Json:
        """A model; when it was made is not known."""
        return {
            "type": "model",
            "id": model.name,
            "display_name": model.name,
            "created_at": _EPOCH,
            "lifecycle": "active",
            "max_input_tokens": model.context_length,
            "max_tokens": model.context_length,
        }

    def models(self, models: Sequence[Model]) -> Json:
        """All models, on one page."""
        return {
            "data": [self.model(each) for each in models],
            "has_more": False,
            "first_id": models[0].name if models else None,
            "last_id": models[-1].name if models else None,
        }
