from __future__ import annotations

import pytest
from scheduling import ByPackage


@pytest.mark.parametrize(
    ("test", "scope"),
    [
        ("plugins/trainers/fsdp/tests/test_ranks.py::test_one[a::b]", "plugins/trainers/fsdp"),
        ("plugins/trainers/fsdp/tests/test_conformance.py::TestIt::test_two", "plugins/trainers/fsdp"),
        ("contrib/prompts/tests/test_jsonl.py::test_it", "contrib/prompts"),
        ("runtime/tests/raas/test_host.py::test_it", "runtime/tests/raas/test_host.py"),
        ("tests/test_run.py::test_it", "tests/test_run.py"),
        ("tests/preflight/test_torch.py::test_it", "tests/preflight/test_torch.py"),
    ],
)  # fmt: skip
def test_tests_of_a_package_stay_together_and_others_by_file(test: str, scope: str) -> None:
    scheduler = ByPackage.__new__(ByPackage)  # one that was set up needs workers
    assert scheduler._split_scope(test) == scope
