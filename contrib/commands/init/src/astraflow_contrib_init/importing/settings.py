"""The settings of another system, and what of them was used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Settings:
    """Values by their dotted names. What :meth:`take` never asked for is :attr:`left`."""

    def __init__(self, nested: Mapping[str, Any]) -> None:
        self._values = dict(_flat("", nested))
        self._taken: set[str] = set()
        self._parts: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def take(self, name: str, default: Any = None) -> Any:
        """The value of ``name``; ``default`` if there is none."""
        self._taken.add(name)
        found = self._values.get(name)
        return default if found is None else found

    def choice(self, name: str, known: Mapping[str, T], default: str) -> T:
        """What the value of ``name`` means. An unknown value means ``default`` and is listed as left out."""
        found = self._values.get(name)
        if isinstance(found, str) and found in known:
            self._taken.add(name)
            return known[found]
        return known[default]

    def leave(self, name: str, value: Any) -> None:
        """A part of a value that was taken, such as an entry of a list, which was not used."""
        self._parts[name] = value

    def number(self, name: str) -> float | None:
        """The value of ``name`` if it is a number, which another form of it is not taken for."""
        found = self._values.get(name)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            return None
        self._taken.add(name)
        return found

    def take_equal(self, prefix: str, other: str) -> None:
        """Take what below ``prefix`` has the value that was taken below ``other``."""
        for name, value in self._values.items():
            twin = f"{other}{name.removeprefix(prefix)}"
            if name.startswith(prefix) and twin in self._taken and self._values.get(twin) == value:
                self._taken.add(name)

    def take_same(self, names: Iterable[str], as_: str) -> None:
        """Take those of ``names`` that have the value of ``as_``."""
        value = self._values.get(as_)
        self._taken.update(n for n in names if n in self._values and self._values[n] == value)

    def below(self, prefix: str) -> list[str]:
        """The names directly below ``prefix``, in their order."""
        start = f"{prefix}."
        found = [
            name[len(start) :].split(".")[0] for name in self._values if name.startswith(start)
        ]
        return list(dict.fromkeys(found))

    @property
    def carried(self) -> int:
        """How many settings were used."""
        return len(self._taken & self._values.keys())

    @property
    def left(self) -> dict[str, Any]:
        """Those that were not, but for :attr:`unset` ones."""
        found = {n: v for n, v in self._values.items() if n not in self._taken and v is not None}
        return {**found, **self._parts}

    @property
    def unset(self) -> list[str]:
        """The names of those that are null: there too, they are as if they were not written."""
        return [name for name, value in self._values.items() if value is None]


def _flat(prefix: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, each in value.items():
        path = f"{prefix}{name}"
        if isinstance(each, Mapping) and each:
            yield from _flat(f"{path}.", each)
        else:
            yield path, each
