"""Reading a status that another version wrote, or that is malformed."""

from __future__ import annotations

import ast
import inspect

import msgspec
import pytest

from astraflow_core.errors import WireError
from astraflow_wire import policy_status, status
from astraflow_wire.status import Status, read_status, read_waits


def test_what_a_newer_dataflow_adds_is_skipped_and_what_is_left_out_has_its_default():
    told = {
        "state": "running",
        "news": [1],
        "policies": {"solver": {"version": 3, "mood": "good"}},
        "eval": {"history": [{"sets": {"held": {"avg": 0.5, "pass": 0.75}}}]},
    }
    found = read_status(told)
    assert (found.policies["solver"].version, found.policies["solver"].rows.accepted) == (3, 0)
    (entry,) = found.eval.history
    assert (entry.sets["held"].pass_, entry.accuracy, entry.accuracy_of("solver")) == (
        0.75,
        0.5,
        None,
    )


@pytest.mark.parametrize(
    ("told", "where"),
    [
        ({"policies": {"solver": {"version": "3"}}}, "`int`, got `str` - at `$.policies[...].version`"),
        ({"raas": [{"state": "alive"}]}, "missing required field `name` - at `$.raas[0]`"),
        ([], "Expected `object`, got `array`"),
    ],
)  # fmt: skip
def test_a_malformed_status_is_refused_by_field(told, where):
    with pytest.raises(WireError) as caught:
        read_status(told)
    assert where in str(caught.value)
    assert str(caught.value).startswith("the reply of the dataflow to GET /v1/status is malformed")
    with pytest.raises(WireError, match="GET /v1/waits is malformed"):
        read_waits({"who": "r0"})


def test_the_json_is_read_as_it_was_written():
    whole = Status(run="r", eta_s=None, samples=[status.GroupSample(rewards=[1.0])])
    assert read_status(msgspec.json.decode(msgspec.json.encode(whole))) == whole


@pytest.mark.parametrize("module", [policy_status, status])
def test_fields_that_are_a_time_or_a_share_say_their_unit(module):
    text = inspect.getsource(module)
    for struct in (n for n in ast.parse(text).body if isinstance(n, ast.ClassDef)):
        for field, doc in zip(struct.body, struct.body[1:], strict=False):
            if not isinstance(field, ast.AnnAssign):
                continue
            assert isinstance(doc, ast.Expr), f"{struct.name}.{field.target.id}"
            if field.target.id.endswith("_s"):
                assert "seconds" in doc.value.value
            if field.target.id.endswith(("fraction", "avg", "pass_", "pass_rate")):
                assert "0 to 1" in doc.value.value
