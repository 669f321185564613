"""The traces of a whole run: what three services did for one prompt is one tree, at its times."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import TABLE_RUN, User

PARENTS = {
    "prompt": ("dataflow", ""),
    "lease": ("dataflow", "prompt"),
    "episode": ("raas-0", "lease"),
    "generate": ("engine-solver", "episode"),
    "reward": ("raas-0", "episode"),
    "accept": ("dataflow", "prompt"),
    "buffer": ("dataflow", "prompt"),
    "train": ("trainer-solver", "prompt"),
    "update": ("trainer-solver", "train"),
    "publish": ("trainer-solver", "train"),
}
"""Span → its service and the name of its parent."""


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_prompt_is_one_tree_across_services(
    tmp_path: Path, collector: Any, someone: Callable[[Path], User]
) -> None:
    table = f"""
[trackers.traces]
use = "opentelemetry"
endpoint = "{collector.url}"
spans = 1.0
"""
    began = time.time()
    with closing(someone(tmp_path)) as user:
        ended = user.run_table("run.steps=4", config=TABLE_RUN + table, deadline_s=120)
    assert ended.exit_code == 0, ended.text
    report = ended.summary["trackers"]["traces"]
    assert report["state"] == "complete" and report["spans"] == len(collector.spans) > 0

    traces: dict[bytes, list[Any]] = defaultdict(list)
    for service, span in collector.spans:
        traces[span.trace_id].append((service, span))
    whole = 0
    for spans in traces.values():
        by_id = {span.span_id: span for _, span in spans}
        assert len(by_id) == len(spans), "ids are unique in a trace"
        for service, span in spans:
            parent = by_id[span.parent_span_id].name if span.parent_span_id else ""
            assert (service, parent) == PARENTS[span.name], span.name
            assert began * 1e9 < span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano < time.time() * 1e9
        names = [span.name for _, span in spans]
        if "train" in names:
            whole += 1
            assert set(names) == set(PARENTS)
            assert names.count("episode") == names.count("generate") == names.count("reward") == 8
            (lease,) = (span for _, span in spans if span.name == "lease")
            (train,) = (span for _, span in spans if span.name == "train")
            for _, span in spans:
                if span.name in ("generate", "reward"):
                    assert lease.start_time_unix_nano < span.start_time_unix_nano
                    assert span.end_time_unix_nano < lease.end_time_unix_nano
            assert lease.end_time_unix_nano <= train.start_time_unix_nano
    assert whole == ended.summary["policies"]["solver"]["rows_trained"] // 8
