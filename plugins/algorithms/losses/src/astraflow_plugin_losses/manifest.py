"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)
OF_ALL = frozenset({"reference", "entropy", "proximal"})


@hookimpl
def astraflow_algorithms() -> list[Component]:
    """One component per loss of the family."""
    return [
        Component(
            name="grpo",
            target="astraflow_plugin_losses.algorithms.grpo:Grpo",
            config="astraflow_plugin_losses.algorithms.grpo:GrpoConfig",
            summary="group-relative advantages, clipped ratio, token mean over the global batch",
            capabilities=OF_ALL,
        ),
        Component(
            name="dr_grpo",
            target="astraflow_plugin_losses.algorithms.dr_grpo:DrGrpo",
            config="astraflow_plugin_losses.algorithms.dr_grpo:DrGrpoConfig",
            summary="GRPO without its two normalisations: R - mean, sum over a constant length",
            capabilities=OF_ALL,
        ),
        Component(
            name="dapo",
            target="astraflow_plugin_losses.algorithms.dapo:Dapo",
            config="astraflow_plugin_losses.algorithms.dapo:DapoConfig",
            summary="GRPO with clip-higher, token mean and a penalty on overlong rows",
            capabilities=OF_ALL,
        ),
        Component(
            name="rloo",
            target="astraflow_plugin_losses.algorithms.rloo:Rloo",
            config="astraflow_plugin_losses.algorithms.rloo:RlooConfig",
            summary="the mean of the group's other rows as baseline, clipped ratio",
            capabilities=OF_ALL,
        ),
        Component(
            name="opo",
            target="astraflow_plugin_losses.algorithms.opo:Opo",
            config="astraflow_plugin_losses.algorithms.opo:OpoConfig",
            summary="the mean of the group weighted by length as baseline, clipped ratio",
            capabilities=OF_ALL,
        ),
        Component(
            name="otb",
            target="astraflow_plugin_losses.group_scale.otb:Otb",
            config="astraflow_plugin_losses.group_scale.otb:OtbConfig",
            summary="group returns as a baseline of each token, weighted by squared gradients",
            capabilities=OF_ALL | {"logit_gradients"},
        ),
        Component(
            name="turn_grpo",
            target="astraflow_plugin_losses.turn_level.turn_grpo:TurnGrpo",
            config="astraflow_plugin_losses.turn_level.turn_grpo:TurnGrpoConfig",
            summary="rewards of turns relative to those at the same place in the group, clipped ratio",
            capabilities=OF_ALL,
        ),
        Component(
            name="gigpo",
            target="astraflow_plugin_losses.turn_level.gigpo:Gigpo",
            config="astraflow_plugin_losses.turn_level.gigpo:GigpoConfig",
            summary="GRPO over episodes, and over the turns that met the same state, clipped ratio",
            capabilities=OF_ALL,
        ),
        Component(
            name="reinforce",
            target="astraflow_plugin_losses.turn_level.reinforce:Reinforce",
            config="astraflow_plugin_losses.turn_level.reinforce:ReinforceConfig",
            summary="discounted returns of turns, with or without a baseline, clipped ratio",
            capabilities=OF_ALL,
        ),
        Component(
            name="reinforce_pp",
            target="astraflow_plugin_losses.algorithms.reinforce_pp:ReinforcePp",
            config="astraflow_plugin_losses.algorithms.reinforce_pp:ReinforcePpConfig",
            summary="returns whitened over the tokens of the batch, clipped ratio",
            capabilities=OF_ALL,
        ),
        Component(
            name="cispo",
            target="astraflow_plugin_losses.algorithms.cispo:Cispo",
            config="astraflow_plugin_losses.algorithms.cispo:CispoConfig",
            summary="REINFORCE with a bounded importance weight per token",
            capabilities=OF_ALL,
        ),
        Component(
            name="gspo",
            target="astraflow_plugin_losses.algorithms.gspo:Gspo",
            config="astraflow_plugin_losses.algorithms.gspo:GspoConfig",
            summary="the clipped ratio of whole rows",
            capabilities=OF_ALL,
        ),
        Component(
            name="sapo",
            target="astraflow_plugin_losses.algorithms.sapo:Sapo",
            config="astraflow_plugin_losses.algorithms.sapo:SapoConfig",
            summary="a soft gate on the ratio instead of a clip",
            capabilities=OF_ALL,
        ),
        Component(
            name="gpg",
            target="astraflow_plugin_losses.group_scale.gpg:Gpg",
            config="astraflow_plugin_losses.group_scale.gpg:GpgConfig",
            summary="the plain policy gradient of R - mean, no ratio",
            capabilities=OF_ALL,
        ),
        Component(
            name="maxrl",
            target="astraflow_plugin_losses.group_scale.maxrl:MaxRl",
            config="astraflow_plugin_losses.group_scale.maxrl:MaxRlConfig",
            summary="R / mean - 1 as advantage, so that hard prompts count more, clipped ratio",
            capabilities=OF_ALL,
        ),
        Component(
            name="gdpo",
            target="astraflow_plugin_losses.group_scale.gdpo:Gdpo",
            config="astraflow_plugin_losses.group_scale.gdpo:GdpoConfig",
            summary="several rewards, each normalised in its group before their sum, clipped ratio",
            capabilities=OF_ALL,
        ),
        Component(
            name="dppo",
            target="astraflow_plugin_losses.masked_ratio.dppo:Dppo",
            config="astraflow_plugin_losses.masked_ratio.dppo:DppoConfig",
            summary="REINFORCE that masks tokens whose probability moved too far",
            capabilities=OF_ALL,
        ),
        Component(
            name="prime_rl",
            target="astraflow_plugin_losses.masked_ratio.prime_rl:PrimeRl",
            config="astraflow_plugin_losses.masked_ratio.prime_rl:PrimeRlConfig",
            summary="prime-rl's default: masked by the change of probability, square of the log-ratio",
            capabilities=OF_ALL,
        ),
        Component(
            name="flash_reinforce",
            target="astraflow_plugin_losses.masked_ratio.flash_reinforce:FlashReinforce",
            config="astraflow_plugin_losses.masked_ratio.flash_reinforce:FlashReinforceConfig",
            summary="one rollout per prompt: the batch's mean as baseline, far rows left out",
            capabilities=OF_ALL,
        ),
        Component(
            name="decoupled_ppo",
            target="astraflow_plugin_losses.algorithms.decoupled_ppo:DecoupledPpo",
            config="astraflow_plugin_losses.algorithms.decoupled_ppo:DecoupledPpoConfig",
            summary="clip to the proximal policy, weight from the behaviour policy",
            capabilities=OF_ALL,
        ),
        Component(
            name="m2po",
            target="astraflow_plugin_losses.algorithms.m2po:M2po",
            config="astraflow_plugin_losses.algorithms.m2po:M2poConfig",
            summary="clip range from the second moment of the log-ratio, for stale data",
            capabilities=OF_ALL | {"current"},
        ),
        Component(
            name="ppo",
            target="astraflow_plugin_losses.algorithms.ppo:Ppo",
            config="astraflow_plugin_losses.algorithms.ppo:PpoConfig",
            summary="clipped ratio, generalized advantages and a value loss, with a critic",
            capabilities=OF_ALL | {"values"},
        ),
        Component(
            name="dpo",
            target="astraflow_plugin_losses.algorithms.dpo:Dpo",
            config="astraflow_plugin_losses.algorithms.dpo:DpoConfig",
            summary="best against worst row of a group, by the log-ratio to the reference model",
            capabilities=frozenset({"reference", "current"}),
        ),
        Component(
            name="opd",
            target="astraflow_plugin_losses.algorithms.opd:Opd",
            config="astraflow_plugin_losses.algorithms.opd:OpdConfig",
            summary="on-policy distillation: a reference model or engines teach, token by token",
            capabilities=OF_ALL,
        ),
        Component(
            name="sft",
            target="astraflow_plugin_losses.algorithms.sft:Sft",
            config="astraflow_plugin_losses.algorithms.sft:SftConfig",
            summary="cross-entropy of all rows, or of those that are good enough",
        ),
    ]
