"""Whole runs whose engines and trainers share a GPU: the quickstart's task is learned as it is on a CPU."""

from __future__ import annotations

import pytest
from workspace import ROOT

from astraflow_testing.runs import User

torch = pytest.importorskip("torch", reason="engine and trainer compute with torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
UPDATES = 40
SETTINGS: dict[str, tuple[str, ...]] = {
    "float32": ("engine.device=cuda", "engine.dtype=float32", "trainer.device=cuda"),
    "bfloat16": (
        "engine.device=cuda", "engine.dtype=bfloat16", "trainer.device=cuda",
        "trainer.compute_dtype=bfloat16", "trainer.layout=packed",
    ),
    "trees": ("engine.device=cuda", "trainer.device=cuda", "trainer.layout=tree", "transport.use=delta"),
    "hf": ("engine.use=hf", "engine.device=cuda", "engine.dtype=float32", "engine.cache_gb=0.5", "trainer.device=cuda"),
}  # fmt: skip
FSDP = (
    "engine.device=cuda", "engine.dtype=float32", "trainer.device=cuda",
    "trainer.ranks=1",
)  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_the_quickstart_is_learned(name: str, user: User) -> None:
    learned(user, "quickstart", *SETTINGS[name])


def test_a_rank_of_fsdp_learns_it(user: User) -> None:
    learned(user, "fsdp", *FSDP)


def learned(user: User, example: str, *keys: str) -> None:
    overrides = [
        f"run.steps={UPDATES}", "raas.replicas=1", f"eval.every={UPDATES}",
        *(f"policies.solver.{key}" for key in keys),
    ]  # fmt: skip
    done = user.astraflow(
        "run", ROOT / "examples" / f"{example}.toml", *(p for o in overrides for p in ("--set", o)),
        deadline_s=200,
    )  # fmt: skip
    assert done.exit_code == 0, done.text
    summary = done.summary
    assert summary["steps"] == UPDATES
    assert summary["eval_first"] <= 0.1 and summary["eval_last"] >= 0.5
