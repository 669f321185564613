"""Whether the components of a run fit together, and who chooses a transport."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astraflow_core.errors import ConfigError
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.config.pairing import pairing_lines

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "quickstart.toml"
CHOOSER = """
@hookimpl
def astraflow_choose_transport(engine, trainer):
    assert (engine, trainer) == ("toy_engine", "toy_trainer")
    return "toy_full"
"""

REASONED = """
from astraflow_core.types import TransportChoice

@hookimpl
def astraflow_choose_transport(run, ends):
    assert ends.same_host and "toy_full" in ends.transports and ends.host is None
    return TransportChoice("toy_full", "it was asked")
"""


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "policies.solver.transport.use=toy_ring",
            (
                "policies.solver.transport: transport 'toy_ring' needs engine capability weights.collective; "
                "'toy_engine' lacks it"
            ),
        ),
        (
            "policies.solver.trainer.ranks=2",
            "policies.solver.trainer.ranks: 2 ranks need trainer capability multi_rank; 'toy_trainer' lacks it",
        ),
        (
            "raas.pause=abort",
            (
                "raas.pause: 'abort' needs engine capability pause.abort; 'toy_engine' of policies.solver offers "
                "keep, wait"
            ),
        ),
        (
            "policies.solver.algorithm.kl=0.1",
            (
                "policies.solver.algorithm: 'toy_loss' with these keys needs trainer capability reference; "
                "'toy_trainer' lacks it"
            ),
        ),
    ],
)
def test_components_that_do_not_fit(
    site: Any, run_file: Path, override: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(run_file, [override], site.catalog())
    assert caught.value.problems == [expected]


def test_images_need_an_engine_and_a_trainer_that_read_them(site: Any, run_file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(run_file, ["policies.solver.images=true"], site.catalog())
    for kind in ("engine", "trainer"):
        assert (
            f"policies.solver.images: needs {kind} capability images; 'toy_{kind}' lacks it: leave the key out, or name "
            in str(caught.value)
        )


def test_router_replay_needs_an_engine_and_a_trainer_that_can(site: Any, run_file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(run_file, ["policies.solver.router_replay=true"], site.catalog())
    assert caught.value.problems == [
        f"policies.solver.router_replay: needs {kind} capability router_replay; 'toy_{kind}' lacks it: leave the key out, or "
        f"name {article} {kind} that has it (`astraflow plugins`)"
        for article, kind in (("an", "engine"), ("a", "trainer"))
    ]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["policies.solver.engine.use=hf"],
            "needs engine capability lora; 'hf' lacks it: set the key to 0, or name another engine",
        ),
        (
            ['policies.solver.engine={ use = "vllm" }'],
            "engine.lora_rank: none is below the rank of the adapters of policies.solver.trainer.lora_rank = 16, so 'vllm' would",
        ),
        (
            ['policies.solver.engine={ use = "vllm", lora_rank = 8 }'],
            "engine.lora_rank: 8 is below",
        ),
        (['policies.solver.engine={ use = "vllm", lora_rank = 16 }'], None),
        ([], None),
    ],
)
def test_adapters_that_cannot_reach_their_engine(
    overrides: list[str], expected: str | None
) -> None:
    adapters = "policies.solver.trainer.lora_rank=16"
    if expected is None:
        load_config(QUICKSTART, [adapters, *overrides])
        return
    with pytest.raises(ConfigError) as caught:
        load_config(QUICKSTART, [adapters, *overrides])
    (problem,) = caught.value.problems
    assert expected in problem


def test_a_transport_that_brings_no_adapters_cannot_serve_one(site: Any, run_file: Path) -> None:
    loaded = load_config(run_file, [], site.catalog())
    components = dict(loaded.components)
    selected, _ = components["policies.solver.trainer"]
    trains = replace(selected.component, capabilities=frozenset({"lora"}))
    keys = SimpleNamespace(lora_rank=4)
    components["policies.solver.trainer"] = (replace(selected, component=trains), keys)  # type: ignore[assignment]
    first, second = pairing_lines(loaded.config, components)
    assert "4 trains an adapter, which needs engine capability lora; 'toy_engine' lacks" in first
    assert "needs transport capability adapter; 'toy_full' lacks it" in second


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["raas.autoscale=true"], "raas.autoscale: requires balance.max_replicas"),
        (
            ["raas.autoscale=true", "balance.max_replicas=2", "raas.replicas=3"],
            "raas.replicas: 3, the number at start, must lie between balance.min_replicas = 1 and",
        ),
        (["balance.use=toy_filter"], "balance.use: 'toy_filter' does not decide how many"),
        (
            ['policies.solver.data=[{ use = "three_zones" }]'],
            "policies.solver.data.0.use: 'three_zones' decides how many RaaS to run and has no effect",
        ),
        (["balance.shrink_below=0.5"], "balance: shrink_below = 0.5 must not be above"),
    ],
)
def test_what_says_how_many_raas_there_should_be(
    site: Any, run_file: Path, overrides: list[str], expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(run_file, overrides, site.catalog())
    (problem,) = caught.value.problems
    assert problem.startswith(expected)


def test_a_plugin_of_the_run_chooses_the_transport(
    site: Any, run_file: Path, manifest: str
) -> None:
    site.add("chooser", manifest + CHOOSER)
    overrides = ["policies.solver.transport.use=auto"]
    with pytest.raises(ConfigError, match=r"run\.toml: (.|\n)*'auto' needs a plugin that chooses"):
        load_config(run_file, overrides, site.catalog())
    loaded = load_config(run_file, [*overrides, 'plugins.enable=["chooser"]'], site.catalog())
    assert loaded.config.policies["solver"].transport.use == "toy_full"
    assert loaded.components["policies.solver.transport"][0].plugin == "toy"
    assert loaded.notes == (
        "policies.solver.transport: 'auto' chose 'toy_full', because a plugin of the run chose it",
    )


def test_a_choice_brings_its_reason(site: Any, run_file: Path, manifest: str) -> None:
    site.add("chooser", manifest + REASONED)
    overrides = ["policies.solver.transport.use=auto", 'plugins.enable=["chooser"]']
    loaded = load_config(run_file, overrides, site.catalog())
    assert loaded.notes == (
        "policies.solver.transport: 'auto' chose 'toy_full', because it was asked",
    )
