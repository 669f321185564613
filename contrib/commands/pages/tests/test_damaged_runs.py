"""A run whose files are damaged, or are something else: each page says which, and the other pages stay."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from served_runs import Pages, write_run
from stored_groups import store

VIEWS = (
    "", "/curves", "/staleness", "/cost", "/status", "/pool", "/weights", "/data", "/plugins", "/config", "/trajectories",
    "/trajectories?filter=text~is", "/trajectories/train-1", "/trajectories/train-1/views", "/life/group?id=train-1",
)  # fmt: skip
NOISE = bytes(range(1, 256)) * 20
INDEX, DATA = "rollouts/dataflow-00000001.index.jsonl", "rollouts/dataflow-00000001.jsonl.gz"


def written(name: str, content: bytes) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(content)

    return change


def a_folder(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()

    return change


def negative_sizes(run: Path) -> None:
    (run / INDEX).write_bytes((run / INDEX).read_bytes().replace(b'"size":', b'"size":-'))


def no_folder(run: Path) -> None:
    shutil.rmtree(run / "rollouts")
    (run / "rollouts").write_text("")


DAMAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "index": (written(INDEX, NOISE), "/trajectories", "cannot be read"),
    "index-folder": (a_folder(INDEX), "/trajectories", "Is a directory"),
    "records": (written(DATA, os.urandom(9000)), "/trajectories/train-1", "is damaged"),
    "records-folder": (a_folder(DATA), "/trajectories/train-1", "is damaged"),
    "sizes": (negative_sizes, "/trajectories/train-1", "is damaged"),
    "rollouts": (no_folder, "/trajectories", "has no rollouts"),
    "plugins": (written("plugins.json", NOISE), "/plugins", "plugins.json is damaged"),
    "plugins-table": (written("plugins.json", b'{"a": 1}'), "/plugins", "plugins.json is damaged"),
    "plugins-list": (written("plugins.json", b'[1, "x"]'), "/plugins", "plugins.json is damaged"),
    "status": (written("status.json", b'{"raas": 3}'), "/pool", "status.json is damaged"),
    "audit": (a_folder("audit.jsonl"), "/pool", "audit.jsonl cannot be read"),
    "journal": (written("journal/entries.log", NOISE), "/data", '"counts":{}'),
    "metrics": (written("metrics.jsonl", NOISE), "", '"damaged":'),
    "summary": (written("summary.json", b"[1]"), "", '"state":"crashed"'),
    "config": (written("config.toml", NOISE), "", '"steps":5'),
}


def test_each_page_says_what_is_damaged_and_the_others_stay(
    tmp_path: Path, serve: Callable[[Path], Pages]
) -> None:
    for name, (change, _, _) in DAMAGE.items():
        run = write_run(tmp_path, name, 5)
        store(run)
        change(run)
    pages = serve(tmp_path)
    assert len(pages.ask("/ui/api/runs").json["runs"]) == len(DAMAGE)
    for name, (_, view, said) in DAMAGE.items():
        answers = {view: pages.ask(f"/ui/api/runs/{name}{view}") for view in VIEWS}
        assert [view for view, answer in answers.items() if answer.status >= 500] == [], name
        assert said in answers[view].body.decode(), name
        group = answers["/trajectories/train-1"].status
        assert group == (404 if view.startswith("/traj") else 200), name
