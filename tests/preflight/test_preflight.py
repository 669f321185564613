"""``astraflow doctor FILE`` starts engine and trainer for real, and finds what is wrong with their numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from astraflow_runtime.cli import main
from astraflow_runtime.raas.episodes import dry_process
from astraflow_testing.runs import TABLE_RUN
from astraflow_testing.table import POSITIONS
from astraflow_tiny_model.folder import ALPHABET, write_tiny_model

HERE = Path(__file__).parent
MUTANTS = HERE.parent / "mutants"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A model folder with a table in which tokens are not equally likely."""
    folder = write_tiny_model(tmp_path / "model", hidden=8, layers=1, heads=1, kv_heads=1)
    logits = np.random.default_rng(0).normal(0, 1.5, (POSITIONS, len(ALPHABET)))
    save_file({"logits": logits.astype(np.float32)}, folder / "model.safetensors")
    return folder


class Doctor:
    """The command on the run of tables, in this process; engine and trainer are processes of their own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "table.toml"
        self.file.write_text(TABLE_RUN)
        self.capsys = capsys

    def ask(
        self,
        code: int,
        *overrides: str,
        more: tuple[str, ...] = (),
        where: str = "policies.solver",
    ) -> dict[str, Any]:
        """Findings on the policy by the end of their subject; the exit code is checked."""
        arguments = [part for o in overrides for part in ("--set", o)]
        got = main(["doctor", str(self.file), "--json", *arguments, *more])
        found = json.loads(self.capsys.readouterr().out)
        assert got == code, [f for f in found if f["level"] == "problem"]
        own = [f for f in found if f["subject"].startswith(where)]
        assert all(f["fix"] for f in found if f["level"] == "problem")
        return {f["subject"].removeprefix(where).strip(" ."): f for f in own}


@pytest.fixture
def doctor(
    tmp_path: Path,
    trained: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Doctor]:
    for folder in (HERE, MUTANTS):
        monkeypatch.syspath_prepend(str(folder))
    path = [str(HERE), str(MUTANTS), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.chdir(tmp_path)
    # As in the command; a worker of pytest has threads, and a dry call would take a new interpreter.
    monkeypatch.setattr(dry_process, "_may_fork", lambda: True)
    slow = request.node.get_closest_marker("slow")
    forks = request.getfixturevalue("fork_server") if slow else None
    with forks.forking() if forks else nullcontext():
        yield Doctor(tmp_path, capsys)


def problems(found: dict[str, Any]) -> set[str]:
    return {subject for subject, finding in found.items() if finding["level"] == "problem"}


@pytest.mark.slow
def test_a_sound_run(doctor: Doctor, trained: Path) -> None:
    found = doctor.ask(0, f"policies.solver.model={trained}")
    assert {finding["level"] for finding in found.values()} == {"ok"}
    gap = found["log-probs"]["figures"]
    assert gap["tokens"] == 256 and 0 <= gap["mean"] <= gap["largest"] < 1e-5
    assert "with the sampling temperature applied" in found["semantics of temperature"]["text"]
    assert "over the whole vocabulary" in found["semantics of truncation"]["text"]
    assert found["weights"]["figures"] == {"tensors": 1, "different": 0}
    assert found["drift"]["figures"]["largest"] == 0
    assert not list(Path.cwd().glob("runs/*"))


@pytest.mark.parametrize(
    ("use", "wrong"),
    [
        pytest.param("TableEngine", set(), marks=pytest.mark.slow),
        ("ShiftedScores", {"score"}),
    ],
)
def test_a_frozen_engine_is_compared_with_itself(
    doctor: Doctor, trained: Path, use: str, wrong: set[str]
) -> None:
    judge = f'engines.judge={{ use = "wrong_engines:{use}", model = "{trained}" }}'
    found = doctor.ask(2 if wrong else 0, judge, "run.colocated=true", where="engines.judge")
    assert {"tokenizer", "chat template", "answers", "greedy", "score"} <= set(found)
    assert problems(found) == wrong
    assert found["answers"]["figures"]["tokens"] > 16 and not found["answers"]["figures"]["wrong"]


@pytest.mark.slow
def test_a_model_that_shows_nothing_is_reported(doctor: Doctor) -> None:
    found = doctor.ask(0)
    assert found["log-probs"]["level"] == "warning"
    assert "equally likely" in found["log-probs"]["text"]


@pytest.mark.slow
@pytest.mark.parametrize("use", ["SeveralRanks", "LateRank"])
def test_a_trainer_of_several_ranks_is_asked_on_all_of_them(
    doctor: Doctor, trained: Path, use: str
) -> None:
    pytest.importorskip("torch", reason="ranks are started by torchrun")
    found = doctor.ask(
        0 if use == "SeveralRanks" else 2,
        f"policies.solver.model={trained}",
        "policies.solver.trainer.ranks=2",
        f"policies.solver.trainer.use=wrong_engines:{use}",
    )
    if use == "SeveralRanks":
        assert {finding["level"] for finding in found.values()} == {"ok"}
        assert found["weights"]["figures"] == {"tensors": 1, "different": 0}
    else:
        assert problems(found) == {"start"}
        assert "trainer solver, rank 1: MemoryError: no room on this one" in found["start"]["text"]


def test_static_starts_nothing(doctor: Doctor) -> None:
    found = doctor.ask(0, "policies.solver.engine.use=wrong_engines:Shifted", more=("--static",))
    assert set(found) == {"model", "mismatch"}


@pytest.mark.turns(
    "tests/preflight/wrong_engines.py",
    "contrib/commands/doctor/src/**/*.py",
    "runtime/src/astraflow_runtime/preflight/*.py",
    "libs/engine_host/src/**/*.py",
    "testing/src/astraflow_testing/table.py",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "use", "found_by"),
    [
        ("engine", "Shifted", {"log-probs", "log-probs as the run samples"}),
        ("engine", "DeclaredRaw", {"semantics of temperature"}),
        ("engine", "DeclaredTruncated", {"semantics of truncation"}),
        ("engine", "IgnoresTopP", {"top_p"}),
        ("engine", "IgnoresTemperature", {"temperature"}),
        ("engine", "OldVersions", {"versions"}),
        ("engine", "ForgetfulLoad", {"drift"}),
        ("engine", "PretendsToLoad", {"swap"}),
        ("engine", "ShiftedScores", {"score"}),
        ("engine", "Dies", {"start"}),
        ("trainer", "WarmTrainer", {"semantics of temperature"}),
        ("trainer", "LossyExport", {"weights"}),
    ],
)
def test_what_is_wrong_is_found(
    doctor: Doctor, trained: Path, part: str, use: str, found_by: set[str]
) -> None:
    found = doctor.ask(
        2,
        f"policies.solver.model={trained}",
        f"policies.solver.{part}.use=wrong_engines:{use}",
    )
    assert found_by <= problems(found), problems(found)
    if use == "Shifted":
        assert "off by one" in found["log-probs"]["text"]


@pytest.mark.slow
def test_a_failed_start_reports_the_reason(doctor: Doctor, trained: Path) -> None:
    found = doctor.ask(2, "policies.solver.trainer.use=wrong_engines:LateTrainer")
    assert problems(found) == {"start"}
    assert "no room for the model" in found["start"]["text"]
    assert "last lines" in found["start"]["text"]


@pytest.mark.slow
def test_the_sampling_of_the_run_is_what_counts(doctor: Doctor, trained: Path) -> None:
    """Raw log-probs are right at temperature 1 and wrong for a trainer at another."""
    raw = ("policies.solver.engine.use=mutants_engine:RawLogprobs", "sampling.temperature=0.6")
    found = doctor.ask(2, f"policies.solver.model={trained}", *raw)
    assert {"semantics of temperature", "log-probs as the run samples"} <= problems(found)
    assert "log-probs" not in problems(found)


@pytest.mark.slow
@pytest.mark.backend
@pytest.mark.parametrize(
    ("use", "found_by"),
    [
        ("ShiftedLogprobs", "log-probs"),
        ("NoTruncation", "top_p"),
        ("WarmedSamples", "temperature"),
    ],
)
def test_the_mutants_of_the_suite(doctor: Doctor, trained: Path, use: str, found_by: str) -> None:
    engine = f"policies.solver.engine.use=mutants_engine:{use}"
    found = doctor.ask(2, f"policies.solver.model={trained}", engine)
    assert found_by in problems(found)
