"""Another trainer with the capability ``gradients`` than ``torch`` behind the server."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tinker_cases import TRAINER, data, in_loop, request, service

from astraflow_core.protocols.trainer import AdamWStep
from astraflow_runtime.audit_log import read_audit


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 4])
def test_a_sharded_trainer_makes_the_steps_of_the_other(rank: int, tmp_path: Path) -> None:
    """Two models at a time; one of them goes on from a state of the other."""

    async def steps(use: str) -> list[float]:
        served = service(tmp_path / use)
        served.base = dataclasses.replace(served.base, trainer=(use, dict(TRAINER)))
        session, found = served.begin({}), []
        models = [served.create_model(session, number, rank, 3, {}) for number in range(2)]
        for model in models:
            opened = served.opened(model, None, True, None)
            await opened.done.wait()
            assert isinstance(opened.outcome, dict), opened.outcome
        for model in models:
            result = await served.gradient(model, lambda: request("ppo", data(1)))
            await served.gradient(model, lambda: request("cross_entropy", data(2)))
            stepped = await served.step(model, AdamWStep(lr=1e-2))
            found += [result.metrics["loss:sum"], stepped["metrics"]["grad_norm"]]  # type: ignore[union-attr,index]
        saved = await served.save(models[0], "weights", "a", False)
        await served.save(models[0], "external_weights", "b", False)
        state = served.store.find(saved.path, "weights")[1]
        await served.computing.do(models[1].load_state, state, True)
        result = await served.gradient(models[1], lambda: request("ppo", data(1)))
        await served.close()
        lines = read_audit(served.store.directory)
        assert {line.request for line in lines} == {"create_model"} and len(lines) == 2
        return [*found, result.metrics["loss:sum"]]  # type: ignore[union-attr]

    sharded, whole = (in_loop(steps(use)) for use in ("fsdp", "torch"))
    assert sharded == pytest.approx(whole, rel=1e-4)
