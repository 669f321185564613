"""The pages below docs/api/, which describe the public names."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass

from workspace import ROOT

from astraflow_core import types


def test_every_field_of_what_a_plugin_gets_is_described_with_its_type() -> None:
    """By the classes themselves, which the page does not import."""
    described = (ROOT / "docs" / "api" / "core.md").read_text(encoding="utf-8")
    classes = {c for c in vars(types).values() if isinstance(c, type) and is_dataclass(c)}
    assert {types.Batch, types.GroupSummary, types.LossInputs, types.Verdict} < classes
    for each in classes:
        part = re.split(
            r"^##", described.partition(f"\n### {each.__name__}\n")[2], maxsplit=1, flags=re.M
        )[0]
        rows = re.findall(r"^\| `(\w+)` \| `.+?` \|", part, re.MULTILINE)
        own = {f.name for f in fields(each)} & set(vars(each).get("__annotations__", ()))
        assert own and own <= set(rows), each
    assert (
        "| `group_size` | `npt.NDArray[np.int32]` |  | `[R]` sequences that the policy has"
        in described
    )
    assert (
        "- `generate(" not in described
        and "- `async generate(request: GenerateRequest)" in described
    )
