"""What a trainer of a model that runs without transformers does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from astraflow_tiny_model.folder import write_tiny_model

PROGRAM = """
import sys, torch
from pathlib import Path
from astraflow_torch_training.config import TrainingConfig
from astraflow_torch_training.model import load_model
from astraflow_torch_training.optimizer import adamw
from astraflow_torch_weights.preloading import preload

preload(Path(sys.argv[1]))
model = load_model(Path(sys.argv[1]), torch.device("cpu"), "sdpa", False, None)
optimizer = adamw(model, TrainingConfig())
model.whole(torch.tensor([[1, 2]])).logits.sum().backward()
optimizer.step()
optimizer.zero_grad()
print(sorted({"transformers", "torch._dynamo", "sympy"} & sys.modules.keys()))
"""


@pytest.mark.slow
def test_training_imports_neither_transformers_nor_a_compiler(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, hidden=16)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
