"""The word ``"none"`` for no value: TOML has no null."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import (
    GetJsonSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.json_schema import JsonSchemaValue

T = TypeVar("T")
NONE = "none"


class _InSchema:
    """Names :data:`NONE` among what a key takes."""

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        described["anyOf"].insert(-1, {"const": NONE, "type": "string"})
        return described


def _read(value: Any, number: ValidatorFunctionWrapHandler) -> Any:
    if value == NONE:
        return None
    try:
        return number(value)
    except ValidationError as error:
        if isinstance(value, str):
            raise ValueError(f'must be a number or "{NONE}"') from error
        raise


OrNone = Annotated[T | None, WrapValidator(_read), _InSchema()]
"""``OrNone[PositiveInt]``: the type of a key with a number that may be switched off. ``None`` in Python; in a file the
key left out, if that is its default, or ``"none"`` over a default or over a file that this one extends. For a key of
which the default depends on something else, ``PositiveInt | None`` is right: it has no word."""
