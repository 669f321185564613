"""Whether a data policy without ``state_dict`` remembers something all the same, so that an image of the state would
forget it.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from pydantic import BaseModel

from astraflow_core.protocols.data_policy import Stateful

_VALUES = (type(None), bool, int, float, complex, str, bytes, Enum)
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


def attributes(component: Any) -> dict[str, Any]:
    """The attributes of an instance."""
    slots = [name for kind in type(component).__mro__ for name in getattr(kind, "__slots__", ())]
    there = {name: getattr(component, name) for name in slots if hasattr(component, name)}
    return there | dict(getattr(component, "__dict__", {}))


def remembers(component: Any, first: dict[str, Any]) -> bool:
    """Whether an instance without ``state_dict`` has an attribute that can change, or that differs from the ``first`` ones:
    those it had when it was made."""
    if isinstance(component, Stateful):
        return False
    now = attributes(component)
    same = now.keys() == first.keys() and all(now[name] is first[name] for name in now)
    return not same or not all(_is_fixed(value) for value in now.values())


def _is_fixed(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(_is_fixed(each) for each in value)
    if isinstance(value, BaseModel):
        return bool(value.model_config.get("frozen"))
    if is_dataclass(value) and not isinstance(value, type):
        frozen = type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
        return frozen and all(_is_fixed(each) for each in attributes(value).values())
    return isinstance(value, _VALUES + _CODE)
