from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from astraflow_plugin_megatron.architecture import Architecture, Experts
from astraflow_plugin_megatron.weights.mapping import entries, pack, unpack

ARCH = Architecture(
    vocabulary=29, hidden=12, ffn=10, layers=4, heads=6, groups=2, head_size=4, norm_eps=1e-6,
    rope_base=1e4, rope_factor=None, context=64, qk_norm=True, qkv_bias=True, tied=False,
)  # fmt: skip


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator)
        for entry in entries(ARCH, 1)
        for name, shape in entry.sources
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_packed_for_ranks_is_unpacked_again(ranks: int) -> None:
    held = tensors()
    for entry in entries(ARCH, 1):
        sources = [held[name] for name, _ in entry.sources]
        shares = [pack(entry.packing, sources, ARCH, rank, ranks) for rank in range(ranks)]
        assert len({share.shape for share in shares}) == 1, entry
        for source, again in zip(sources, unpack(entry.packing, shares, ARCH), strict=True):
            assert torch.equal(source, again), entry


def test_a_rank_holds_whole_groups_of_queries_with_their_key_and_value() -> None:
    held = tensors()
    q, k, v = (held[f"model.layers.0.self_attn.{one}_proj.weight"] for one in "qkv")
    second = pack("qkv", [q, k, v], ARCH, 1, 2)
    # 3 heads of 4 rows a group, in group 1; then its key and its value.
    assert torch.equal(second, torch.cat([q[12:24], k[4:8], v[4:8]]))


def test_a_rank_holds_its_gates_above_its_ups() -> None:
    held = tensors()
    gate, up = (held[f"model.layers.0.mlp.{one}_proj.weight"] for one in ("gate", "up"))
    assert torch.equal(pack("gated", [gate, up], ARCH, 1, 2), torch.cat([gate[5:], up[5:]]))


def test_stages_hold_neighbouring_layers_and_number_them_from_zero() -> None:
    plan = list(entries(ARCH, 2))
    stage_of = {name: entry.stage for entry in plan for name, _ in entry.sources}
    assert stage_of["model.embed_tokens.weight"] == 0 and stage_of["lm_head.weight"] == 1
    for number in range(4):
        assert stage_of[f"model.layers.{number}.mlp.down_proj.weight"] == number // 2
    assert len({(entry.stage, entry.names[0]) for entry in plan}) == len(plan)
    assert any("layers.1.self_attn" in e.sources[0][0] and "layers.1." in e.names[0] for e in plan)
    assert any("layers.3.self_attn" in e.sources[0][0] and "layers.1." in e.names[0] for e in plan)


def test_parts_hold_neighbouring_experts_and_number_them_from_zero() -> None:
    arch = replace(ARCH, experts=Experts(number=4, routed=2, ffn=6, normalised=True))
    plan = list(entries(arch, 1, 2))
    third = [e for e in plan if "model.layers.0.mlp.experts.2." in e.sources[0][0]]
    assert [(e.names[0], e.part) for e in third] == [
        ("decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight", 1),
        ("decoder.layers.0.mlp.experts.local_experts.0.linear_fc2.weight", 1),
    ]
    assert all((e.part is not None) == (".experts." in e.sources[0][0]) for e in plan)
    assert len({(e.part, e.names[0]) for e in plan}) == len(plan)
    assert ("model.layers.3.mlp.gate.weight", (4, 12)) in [e.sources[0] for e in plan]
    assert not any("mlp.gate_proj" in name for e in plan for name, _ in e.sources)
