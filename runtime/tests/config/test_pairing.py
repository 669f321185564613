"""Whether the components of a run fit together, and who chooses a transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import ConfigError
from astraflow_runtime.config.loading import load_config

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
