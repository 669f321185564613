"""The benchmarks run and count right. What they time is never asserted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from shutil import which
from typing import Any

import pytest
from bench.campaign.verdict import Verdict
from bench.environments import THIN
from bench.support.environment_cases import CASES
from bench.support.slow_link import possible
from bench_sources import of

Quick = Callable[[str], dict[str, Any]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@of("cli_start")
def test_the_command_line_starts_without_backends(quick: Quick) -> None:
    fields = quick("cli_start")
    assert fields["heavy_modules"] == 0
    assert fields["cpu_s"] >= fields["bare_python_cpu_s"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@of("cold_start")
def test_a_cold_start_is_divided_among_its_processes(quick: Quick) -> None:
    fields = quick("cold_start")
    roles = ("launcher", "dataflow", "trainer", "raas", "host")
    each = [fields[f"table_{role}_cpu_s"] for role in roles]
    shared = fields["table_imports_cpu_s"]
    assert min(each) > 0 and sum(each) + shared == pytest.approx(fields["table_cpu_s"])
    assert all(fields[f"{role}_imports_cpu_s"] > 0 for role in roles)
    assert fields["table_s"] > 0 and fields["discovery_cpu_s"] > 0


@pytest.mark.backend
@of("mismatch")
def test_the_exact_pair_has_no_gap_and_the_fast_one_has(quick: Quick) -> None:
    fields = quick("mismatch")
    assert fields["exact_largest"] == fields["exact_sampled_again"] == 0
    assert 0 < fields["torch_torch_mean"] < fields["bfloat16_torch_mean"]
    assert fields["exact_over_fast_step"] > 0 and fields["exact_over_fast_sampling"] > 0


@of("batch_latency")
def test_a_batch_from_a_full_buffer_is_whole(quick: Quick) -> None:
    fields = quick("batch_latency")
    assert fields["lost"] == 0
    # 13 bytes of columns, and what rows and frame add.
    assert 13 < fields["bytes_per_token"] < 14
    for name in ("over_socket_1k", "over_socket_8k", "p99_over_p50"):
        assert fields[name] > 0
    assert fields["vs_reference"] > 0 and fields["vs_reference_without_sleep"] > 0


@of("flow_scale")
def test_no_sequence_of_a_thousand_raas_is_lost_or_comes_twice(quick: Quick) -> None:
    fields = quick("flow_scale")
    assert fields["lost"] == fields["duplicated"] == 0
    assert fields["over_bare_at_1"] > 0 and fields["over_bare_at_1000"] > 0


@of("policy_scale")
def test_every_policy_gets_its_rows_once_and_a_stalled_trainer_holds_no_one_up(
    quick: Quick,
) -> None:
    fields = quick("policy_scale")
    assert fields["lost"] == fields["duplicated"] == 0
    assert all(fields[f"row_cpu_us_at_{count}"] > 0 for count in (1, 2, 4, 8))
    assert fields["efficiency_at_1"] == 1 and fields["efficiency_at_8"] > 0
    assert fields["stall_cost"] < 1 and fields["left_out_s"] >= 0


@of("recovery")
def test_no_row_is_lost_whichever_process_is_killed(quick: Quick) -> None:
    fields = quick("recovery")
    assert fields["kills"] == 4
    assert fields["lost_rows"] == fields["lost_tasks"] == 0
    for name in ("raas", "host", "trainer", "dataflow"):
        assert fields[f"{name}_own_start_s"] > 0
        assert fields[f"{name}_least_s"] <= fields[f"{name}_s"] <= fields[f"{name}_most_s"]
        # The operating system notes when a process was created in steps of 10 ms.
        assert fields[f"{name}_noticed_s"] > -0.02 and fields[f"{name}_after_start_s"] > 0


@of("raas_health")
def test_health_is_answered_while_versions_are_loaded(quick: Quick) -> None:
    fields = quick("raas_health")
    assert fields["versions"] == 4 and fields["calls"] > 0
    assert 0 < fields["p50_ms"] <= fields["p99_ms"] <= fields["most_ms"]


@of("wan_sync")
def test_every_version_that_crosses_a_bad_link_is_the_one_that_was_published(
    quick: Quick,
) -> None:
    if not possible():
        pytest.skip("the slow link needs root: it makes network namespaces and TUN devices")
    fields = quick("wan_sync")
    assert fields["silent_errors"] == 0
    assert fields["full_over_ideal"] > 0
    # A flipped bit costs a block, a break what was on its way.
    assert 0 < fields["resent_fraction"] < 0.5


@of("far_raas")
def test_a_far_raas_gets_every_version_it_serves_while_the_trainer_continues(quick: Quick) -> None:
    if not possible():
        pytest.skip("the slow link needs root: it makes network namespaces and TUN devices")
    fields = quick("far_raas")
    assert fields["steps"] == 6 and fields["versions_published"] == 7
    assert 2 <= fields["versions_served"] <= 7 and fields["max_staleness_seen"] <= 2
    assert fields["refresh_s"] > 0.3 and fields["publish_s"] > 0
    assert 0 < fields["busy_while_fetching"] <= 1


@of("sync_e2e")
def test_receivers_of_whole_versions_are_measured(quick: Quick) -> None:
    fields = quick("sync_e2e")
    assert fields["full_over_limit"] > 0
    assert fields["full_publisher_cpu_8_over_1"] > 0


@of("co_located")
def test_a_version_in_shared_memory_is_mapped_and_verified(quick: Quick) -> None:
    fields = quick("co_located")
    assert fields["over_memcpy_and_hash"] > 0 and fields["announced_to_mapped_ms"] > 0


@of("sharded_publish")
def test_ranks_publish_their_own_blocks_and_gathered_ones(quick: Quick) -> None:
    fields = quick("sharded_publish")
    for ranks in (1, 2, 4):
        assert fields[f"wall_over_gathered_{ranks}"] > 0
        assert fields[f"cpu_over_gathered_{ranks}"] > 0
        gathered = (1 - 1 / ranks) * fields["model_mb"]
        assert fields[f"gathered_between_mb_{ranks}"] == pytest.approx(gathered, rel=0.01)
        assert fields[f"sharded_between_mb_{ranks}"] <= gathered / 10
    # Two versions of what a rank serves, and what it hands over, whatever a process needs beside that.
    assert fields["sharded_peak_mb_4"] < fields["gathered_peak_mb_4"]


@of("transports")
def test_every_transport_brings_a_version(quick: Quick) -> None:
    fields = quick("transports")
    for name in ("http", "zmq", "shm", "disk"):
        assert fields[f"{name}_mb_s"] > 0 and fields[f"{name}_cpu_s_per_gb"] > 0


@of("tls")
def test_encrypted_sides_stand_beside_plain_ones(quick: Quick) -> None:
    fields = quick("tls")
    for name in ("http", "zmq", "push"):
        assert fields[f"{name}_over_plain"] > 0 and fields[f"{name}_cpu_over_plain"] > 0
    assert fields["http_mb_s"] > 0 and fields["zmq_plain_mb_s"] > 0


@of("environments")
def test_environments_are_played_beside_the_library_alone(quick: Quick) -> None:
    fields = quick("environments")
    assert fields["leaked_processes"] == 0
    overs = [fields[f"{name}_over_bare"] for name in CASES if name not in THIN]
    assert {"key_door", "sqlite", "gymnasium", "textarena", "openenv"} < CASES.keys()
    assert fields["worst_over_bare"] == min(overs) > 0


@of("fault_bias")
def test_faults_do_not_choose_what_is_trained(quick: Quick) -> None:
    fields = quick("fault_bias")
    assert fields["violations"] == fields["none_missing"] == 0
    assert fields["staleness_missing"] > 0 and -0.1 < fields["raas_length_expected"] < 0


@of("restart")
def test_a_restart_takes_time_in_proportion_to_the_run(quick: Quick) -> None:
    fields = quick("restart")
    assert fields["entries"] > 3 * fields["groups"] > 0
    assert 0 < fields["growth"] < 3


@of("adapters")
def test_an_adapter_is_its_factors_and_no_more(quick: Quick) -> None:
    fields = quick("adapters")
    # Two layers of hidden 64: queries and outputs of 512, keys and values of 256, three matrices of 1536 rows or columns.
    sides = 2 * sum(64 + other for other in (512, 512, 256, 256, 1536, 1536, 1536))
    for rank in (8, 32):
        header = fields[f"bytes_rank_{rank}"] - 2 * rank * sides
        assert 0 < header < 5000
        assert fields[f"swap_rank_{rank}_cpu_s"] > 0
    assert fields["bytes_whole"] > fields["bytes_rank_32"] > fields["bytes_rank_8"]
    wide = 2 * sum(128 + other for other in (1024, 1024, 512, 512, 3072, 3072, 3072))
    assert 0 < fields["bytes_wide_rank_8"] - 2 * 8 * wide < 5000
    assert fields["share_wide_rank_8"] < fields["share_rank_8"]
    assert fields["live_versions"] == 4 and fields["live_rank_8_cpu_s"] > 0


@of("router_replay")
def test_router_replay_closes_the_gap_of_log_probs(quick: Quick) -> None:
    fields = quick("router_replay")
    assert fields["other_experts"] > 0.1 and fields["bytes_per_token"] == pytest.approx(32, abs=1)
    assert 0 < fields["replayed_gap_mean"] < fields["gap_mean"] / 2
    assert fields["replayed_off"] == 0 < fields["off"]


@of("second_leases")
def test_second_leases_shorten_the_wait(quick: Quick) -> None:
    fields = quick("second_leases")
    assert fields["violations"] == 0
    assert fields["slow_s"] < fields["slow_without_s"]
    assert fields["equal_second_share"] < fields["slow_second_share"] < fields["any_second_share"]


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@of("chaos")
def test_nothing_is_lost_or_torn_by_faults_in_real_processes(quick: Quick) -> None:
    fields = quick("chaos")
    assert fields["faults"] >= 13
    assert {name: fields[name] for name in vars(Verdict())} == vars(Verdict())
    assert fields["stalls"] == 0


@pytest.mark.backend
@pytest.mark.skipif(
    not which("chromium"), reason="no chromium on PATH; the tests of pages install it"
)
@of("pages")
def test_the_pages_of_a_long_run_are_drawn(quick: Quick) -> None:
    fields = quick("pages")
    assert fields["steps"] == 10_000 and fields["first_paint_s"] > 0
    assert fields["interaction_p95_ms"] >= fields["interaction_ms"] > 0
