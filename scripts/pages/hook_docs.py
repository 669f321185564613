"""The documentation of a hook: text and fields, as in ``:called: in the dataflow``, of its docstring, and its example."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from workspace import ROOT

from pages.markdown import prose

FIELDS = {
    "called": "**Called** ",
    "built": "**Built** ",
    "returns": "**Returns** ",
    "error": "**An exception** ",
}
"""Fields in the order of the page → how it begins them."""
_FIELD = re.compile(r"^:(\w+): (.*(?:\n[ \t]+\S.*)*)\n?", re.MULTILINE)
EXAMPLES = ROOT / "examples" / "hooks"


@dataclass(frozen=True)
class HookDoc:
    """The docstring of a hook, or of a class of hooks."""

    text: str
    fields: dict[str, str]

    @classmethod
    def of(cls, documented: object) -> HookDoc:
        """The parts; ``ValueError`` if a field is not known."""
        whole = inspect.cleandoc(documented.__doc__ or "")
        fields = {name: " ".join(value.split()) for name, value in _FIELD.findall(whole)}
        if unknown := sorted(fields.keys() - FIELDS.keys()):
            raise ValueError(f"{documented} has unknown fields: {', '.join(unknown)}")
        return cls(prose(_FIELD.sub("", whole).strip()), fields)

    def listed(self) -> str:
        """The fields as a list."""
        items = [begin + self.fields[name] for name, begin in FIELDS.items() if name in self.fields]
        return "\n".join(f"- {prose(item.rstrip('.'))}." for item in items)


def example_of(hook: str) -> str:
    """An implementation of a hook, as a block of code that can be pasted."""
    return f"```python\n{(EXAMPLES / f'{hook}.py').read_text(encoding='utf-8')}```"
