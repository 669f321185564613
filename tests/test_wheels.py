"""Every distribution builds from its sdist alone, and an installed wheel brings the core and works."""

from __future__ import annotations

import configparser
import json
import tarfile
import zipfile
from pathlib import Path

import dev
import pytest
from packaging.requirements import Requirement
from wheels import build, clean_environment, execute, install
from workspace import declared, metadata_of, normal

ADVANTAGES = """
from importlib.metadata import entry_points
from pathlib import Path
import numpy as np
from astraflow_core.component import load_attribute
from astraflow_core.types import Batch, ComponentContext, RunInfo

(point,) = entry_points(group="astraflow", name="losses")
(component,) = [c for c in point.load().astraflow_algorithms() if c.name == "grpo"]
Config = load_attribute(component.config)
try:
    Config(no_such_key=1)
except ValueError as error:
    assert "no_such_key" in str(error), error
else:
    raise SystemExit("an unknown key was accepted")
run = RunInfo("test", 0, 1, 0, ("p",), Path("."))
context = ComponentContext(run=run, role="trainer", policy="p", seed=0, directory=Path("."))
algorithm = load_attribute(component.target)(Config(), context)
mask = np.array([0, 1, 1, 0, 1], dtype=bool)  # two rows of 3 and 2 tokens
batch = Batch(
    id="b", policy="p", version=0,
    lengths=np.array([3, 2], dtype=np.int32), tokens=np.arange(5, dtype=np.int32), loss_mask=mask,
    logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
    versions=np.where(mask, 0, -1).astype(np.int32), rewards=np.array([1, 0], dtype=np.float32),
    group=np.zeros(2, dtype=np.int64), trajectory=np.arange(2, dtype=np.int64),
    group_size=np.full(2, 2, dtype=np.int32), group_mean=np.full(2, 0.5, dtype=np.float32),
    group_std=np.full(2, 0.5**0.5, dtype=np.float32),
)
advantages = algorithm.advantages(batch)
np.testing.assert_allclose(advantages[mask], np.array([1, 1, -1]) / 2**0.5, rtol=1e-3)
"""

NO_TORCH = """
import importlib.util
assert importlib.util.find_spec("torch") is None
"""

LOSS = """
import torch
from astraflow_core.types import LossInputs

t = torch.from_numpy
weights = {name: t(w) for name, w in algorithm.weights(batch).items()}
logprobs = t(batch.logprobs).clone().requires_grad_()
behaviour = t(batch.logprobs)
loss = algorithm.loss(LossInputs(
    logprobs=logprobs, behaviour=behaviour, proximal=behaviour, advantages=t(advantages),
    mask=t(mask), row=t(batch.row_of_token), rows=2, weights=weights, step=0,
))
total = sum(c * value for c, value in loss.terms.values())
total.backward()
# On policy the ratio is 1: the loss is minus the mean advantage of the three trained tokens.
np.testing.assert_allclose(total.item(), -(1 + 1 - 1) / 2**0.5 / 3, rtol=1e-3)
np.testing.assert_allclose(logprobs.grad[mask], -advantages[mask] / 3, rtol=1e-3)
assert not logprobs.grad[~t(mask)].any()
"""


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Distribution -> (sdist, wheel built from that sdist), all in one folder."""
    out, work = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("sdists")
    names = {package.path: package.name for package in dev.packages()}
    return {names[path]: files for path, files in build(names, out, work).items()}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_every_distribution_builds_whole(wheelhouse: dict[str, tuple[Path, Path]]) -> None:
    wrong: list[str] = []
    for package in dev.packages():
        sdist, wheel = wheelhouse[package.name]
        source = package.path / "src"
        files = {
            str(file.relative_to(source))
            for file in source.rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        }
        project = metadata_of(package.path)["project"]
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            info = next(n for n in names if n.endswith("METADATA")).removesuffix("METADATA")
            metadata = archive.read(info + "METADATA").decode()
            points = configparser.ConfigParser(delimiters=("=",))
            if info + "entry_points.txt" in names:
                points.read_string(archive.read(info + "entry_points.txt").decode())
        assert {n for n in names if not n.startswith(info)} == files, package.name
        listed = dict(points["astraflow"]) if "astraflow" in points else {}
        assert listed == project.get("entry-points", {}).get("astraflow", {}), package.name
        required = {
            normal(line.removeprefix("Requires-Dist: ").split(";")[0].split("[")[0].strip(" ()"))
            for line in metadata.splitlines()
            if line.startswith("Requires-Dist: ")
        }
        wrong += [f"{package.name}: {line}" for line in _impossible(metadata)]
        asked = declared(package.path)
        assert all(any(r.startswith(a) for r in required) for a in asked), package.name
        with tarfile.open(sdist) as archive:
            members = {name.partition("/")[2] for name in archive.getnames()}
        assert {"pyproject.toml", "README.md", "PKG-INFO"} <= members, package.name
    assert not wrong, "\n".join(wrong)


def _impossible(metadata: str) -> list[str]:
    """Requirements of a wheel on distributions of ours that do not exist, or not in that version."""
    versions = {p.name: metadata_of(p.path)["project"]["version"] for p in dev.packages()}
    asked = [
        Requirement(line.removeprefix("Requires-Dist: "))
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist: astraflow")
    ]
    return [
        f"{each} (here: {versions.get(normal(each.name), 'no such distribution')})"
        for each in asked
        if not each.specifier.contains(versions.get(normal(each.name), "none"))
    ]


def test_a_requirement_on_what_does_not_exist_is_found() -> None:
    lines = ("astraflow-core>=0.1,<0.2", "astraflow-none>=0.1", "astraflow-wire>=7 ; extra == 'x'")
    wrong = _impossible("".join(f"Requires-Dist: {line}\n" for line in lines))
    assert [line.partition(" ")[0] for line in wrong] == [
        "astraflow-none>=0.1",
        "astraflow-wire>=7;",
    ]
    assert "no such distribution" in wrong[0] and "here: 0.1.0" in wrong[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plugin_from_a_folder_brings_the_core_and_its_extra_what_the_loss_needs(
    wheelhouse: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    wheels = wheelhouse["astraflow-core"][1].parent
    python = clean_environment(tmp_path / "venv", wheels, "astraflow-plugin-losses")
    printed = execute(str(python), "-m", "astraflow_core")
    listed = {plugin["distribution"]: plugin["problem"] for plugin in json.loads(printed)}
    assert listed == {"astraflow-core": None, "astraflow-plugin-losses": None}, printed
    execute(str(python), "-c", NO_TORCH + ADVANTAGES)
    for service in ("fastapi", "rich", "matplotlib", "zmq"):
        execute(
            str(python), "-c", f"import importlib.util as u; assert not u.find_spec({service!r})"
        )

    install(python, wheels, "astraflow-plugin-losses[runtime]")
    execute(str(python), "-c", ADVANTAGES + LOSS)
