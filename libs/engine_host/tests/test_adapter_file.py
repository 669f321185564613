"""What is refused before an adapter is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scripted_sharing import adapter

from astraflow_core.errors import WeightsError
from astraflow_engine_host.sharing import adapter_file


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (adapter(7, adapter_file.MOST_RANK + 1), "has rank 513"),
        (adapter(7, 513, name="lora_B"), "has rank 513"),
        (adapter(7, 0), "has rank 0"),
        (adapter(7, dtype=np.int8), "has dtype I8"),
        (adapter(7, dtype=np.float64), "has dtype F64"),
        (adapter(7, name="other"), "not a factor"),
        (b"\xff" * 64, "header"),
        (adapter(7, 512), "was announced"),
    ],
)
def test_what_is_no_adapter_of_a_usual_size_is_refused_by_its_header(
    tmp_path: Path, data: bytes, problem: str
) -> None:
    file = tmp_path / "adapter"
    file.write_bytes(data)
    with pytest.raises(WeightsError, match=problem):
        adapter_file.check_adapter(file, 3, "another")
