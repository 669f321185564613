"""Numbers and truth values of a config are what they are written as: ``true`` is not 1, ``"8"`` not 8, 1 not true."""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler

PositiveInt = Annotated[int, Field(ge=1)]

_VALUES = ("default", "metadata", "serialization", "expected")
"""Keys of a schema that hold no schema of what is validated."""


def _strict(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(_strict(item) for item in schema)
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in ("float", "bool"):
        return schema | {"strict": True}
    if schema.get("type") == "int" and not schema.get("strict"):
        function = {"type": "no-info", "function": _whole}
        return {
            "type": "function-before",
            "function": function,
            "schema": schema | {"strict": True},
        }
    return {key: value if key in _VALUES else _strict(value) for key, value in schema.items()}


def _whole(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


class StrictNumbers(BaseModel):
    """Base of a config model whose integer, float and boolean keys, also inside lists and tables, take no other type.
    An integer is a float too, and a float without fraction, such as ``1e6``, an integer."""

    # A process validates few of the models that it imports: each is built when it is used.
    model_config = ConfigDict(defer_build=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema = handler(source)
        own = cast("dict[str, Any]", handler.resolve_ref_schema(schema))
        own.update(_strict(own))
        return schema


class ConfigModel(StrictNumbers):
    """Base of every config model, of the core and of components: frozen, unknown keys are errors, and so are a boolean
    or a text for a number and a number for a boolean."""

    model_config = ConfigDict(frozen=True, extra="forbid")
