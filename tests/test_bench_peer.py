"""The benchmark against TRL gives both sides the same job and measures them alike."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer
from workspace import ROOT

from astraflow_contrib_rewards import exact
from astraflow_core.types import Completion
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_tiny_model.folder import ALPHABET, write_tiny_model
from astraflow_training.schedule import lr_factor

sys.path.append(str(ROOT))

from bench import peer
from bench.baselines import trl_grpo

pytestmark = pytest.mark.slow
END = ALPHABET.index("$")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> tuple[FolderTokenizer, object]:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"), hidden=8, layers=1)
    return FolderTokenizer(folder), AutoTokenizer.from_pretrained(folder)


@given(data=st.data())
def test_both_sides_reward_a_completion_alike(
    tokenizers: tuple[FolderTokenizer, object], data: st.DataObject
) -> None:
    ours, theirs = tokenizers
    answer = data.draw(st.text("0123456789", min_size=1, max_size=5))
    written = data.draw(st.lists(st.sampled_from(range(len(ALPHABET))), max_size=6))
    near = [ALPHABET.index(character) for character in answer]
    ids = data.draw(st.sampled_from([written, near, [*near, END]]))
    if END in ids:
        ids = ids[: ids.index(END) + 1]  # neither side passes on later tokens
    tokens = np.array(ids, np.int32)
    stopped = bool(ids) and ids[-1] == END
    completion = Completion("solver", ours.decode(tokens), tokens, "stop" if stopped else "length")
    text, ended = trl_grpo.text_and_end(ids, theirs)
    assert (text, ended) == (completion.text, stopped)
    expected = exact.matching_positions(completion, answer)
    assert trl_grpo.matching_positions(text, ended, answer) == expected


def test_the_job_is_the_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path))
    job = peer.job(seed=3, threads=2)
    assert Path(job["model"]).is_relative_to(tmp_path)
    assert (job["steps"], job["batch_sequences"], job["group_size"]) == (100, 512, 16)
    assert len(job["prompts"]) == 100 * 512 // 16 and len(job["held_out"]) == 256
    shown = {row["prompt"] for row in job["prompts"]}
    assert len(shown) == len(job["prompts"])
    assert shown.isdisjoint(row["prompt"] for row in job["held_out"])
    assert job["prompts"] != peer.job(seed=4, threads=2)["prompts"]
    for step in range(job["steps"]):
        expected = lr_factor(step, 100, "linear", job["warmup_steps"], job["min_lr_ratio"])
        assert trl_grpo.lr_factor(job, step) == pytest.approx(expected)
        expected = np.interp(step, *zip(*job["entropy_coef"], strict=True))
        assert trl_grpo.entropy_coef(job, step) == pytest.approx(expected)


BUSY = """
import json, subprocess, sys, time

def tell(**line):
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps({"time": time.time(), **line}) + "\\n")

tell(step=0, accuracy=0.0)
tell(step=1)
burn = "import time\\nwhile time.process_time() < 0.5: pass"
subprocess.run([sys.executable, "-c", burn], check=True)
tell(step=10, accuracy=0.89)
going_on = [sys.executable, "-c", burn + "\\nprint(flush=True)\\ntime.sleep(60)"]
child = subprocess.Popen(going_on, stdout=subprocess.PIPE)
child.stdout.readline()
while time.process_time() < 0.3: pass
time.sleep(0.5)
tell(step=20, accuracy=0.9)
time.sleep(60)
"""


def test_a_side_is_measured_with_its_children_until_it_is_solved(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"

    def events() -> peer.Events:
        return [(x["time"], x["step"], x.get("accuracy")) for x in peer._lines(file)]

    solved = peer.solved([sys.executable, "-c", BUSY, str(file)], events)
    assert solved.steps == 20
    assert solved.first_wall_s < solved.wall_s - 0.5
    # 0.5 s each in a child that has ended and in one that continues, 0.3 s of its own; clocks tick.
    assert 1.3 - 0.05 < solved.cpu_s < 4
    assert solved.first_cpu_s < solved.cpu_s - 0.3
    assert [line["step"] for line in peer._lines(file)] == [0, 1, 10, 20]


def test_a_side_that_ends_unsolved_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended with 0 and was not at"):
        peer.solved([sys.executable, "-c", ""], lambda: [(0.0, 1, None), (0.0, 10, 0.5)])


def test_each_ratio_is_to_the_better_setting() -> None:
    ours = {
        1: [peer.Solved(50, 10.0, 20.0, 2.0, 4.0)] * 3,
        2: [peer.Solved(50, 20.0, 25.0, 2.0, 4.0)] * 3,
    }
    many = [peer.Solved(50, wall, 40.0, 1.0, 2.0) for wall in (10.0, 12.0, 30.0)]
    single = [peer.Solved(50, 20.0, 15.0, 1.0, 2.0)] * 3
    fields = peer.compared(ours, {2: many, 1: single})
    assert fields["vs_trl_wall"] == pytest.approx(1.2)
    assert fields["vs_trl_cpu"] == pytest.approx(0.75)
    assert fields["shipped_vs_trl_wall"] == pytest.approx(0.6)
    assert fields["trl_2_threads_wall_s"] == 12 and fields["trl_1_threads_cpu_s"] == 15
    assert fields["vs_trl_wall_after_start"] == pytest.approx(11 / 8)
    assert fields["vs_trl_cpu_after_start"] == pytest.approx(13 / 16)
    assert fields["ours_1_raas_cpu_s_per_step"] == pytest.approx(16 / 49, abs=1e-4)
