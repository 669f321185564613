"""What an artifact holds, and which ones are refused before anything of them is installed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_pack import installer, writing
from astraflow_contrib_pack.contents import ENGINE, SERVICES, RunContents, contents_of
from astraflow_contrib_pack.installer import ArtifactError, install, read_manifest
from astraflow_contrib_pack.recipes import containerfile
from astraflow_core.errors import UserError
from astraflow_runtime.cli import main
from astraflow_runtime.config.loading import load_config
from astraflow_testing.runs import TABLE_RUN

OWN_REWARD = "def mine(prompt, completion):\n    return 1.0\n"


def contents(folder: Path, config: str = TABLE_RUN) -> RunContents:
    (folder / "run.toml").write_text(config)
    return contents_of(load_config(folder / "run.toml"), folder / "run.toml", with_models=False)


def test_a_run_is_packed_with_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "own_reward.py").write_text(OWN_REWARD)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "1", "answer": "1"}\n')
    (tmp_path / "secret.txt").write_text("not of the run")
    config = TABLE_RUN.replace('use = "exact"\npartial = "positions"', 'use = "own_reward:mine"')
    config = config.replace('use = "digits"\ndigits = 2', 'use = "jsonl"\npath = "tasks.jsonl"')
    found = contents(tmp_path, config)
    assert sorted(found.files) == ["own_reward.py", "run.toml", "tasks.jsonl"]
    services, engine = found.roles[SERVICES], found.roles[ENGINE]
    assert {"astraflow-runtime", "astraflow-contrib-prompts", "astraflow-testing"} <= set(
        services.ours
    )
    assert "astraflow-contrib-tiny-models" in services.ours
    assert not {"astraflow-contrib-sql", "astraflow-contrib-hf-models"} & set(services.ours)
    assert {"astraflow-engine-host", "astraflow-wire"} <= set(engine.ours)
    assert not {"astraflow-contrib-prompts", "astraflow-contrib-single-turn"} & set(engine.ours)
    assert all(pin.count("==") == 1 for pin in services.pins)


def test_a_file_elsewhere_is_not_packed_and_named(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "1", "answer": "1"}\n')
    (tmp_path / "run").mkdir()
    config = TABLE_RUN.replace(
        'use = "digits"\ndigits = 2', 'use = "jsonl"\npath = "../tasks.jsonl"'
    )
    found = contents(tmp_path / "run", config)
    assert sorted(found.files) == ["run.toml"]
    assert any("tasks.jsonl is outside" in note for note in found.notes)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an artifact that was written twice, whose wheels need not be built."""
    tmp_path = tmp_path_factory.mktemp("artifacts")
    found = contents(tmp_path)

    def wheels(contents: RunContents, work: Path, complete: bool) -> dict[str, str]:
        names = {n: f"{n}.whl" for role in contents.roles.values() for n in role.ours}
        for name in names.values():
            (work / name).write_bytes(name.encode())
        return names

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_wheels", wheels)
        digest = writing.write_artifact(tmp_path / "a.afpack", found, "run.toml", [], False)
        os.utime(tmp_path / "run.toml", (1, 1))  # other dates are the same input
        assert writing.write_artifact(tmp_path / "b.afpack", found, "run.toml", [], False) == digest
    return tmp_path


@pytest.fixture
def written(artifacts: Path, tmp_path: Path) -> Path:
    """A copy of an artifact, which a test may change."""
    return Path(shutil.copy(artifacts / "a.afpack", tmp_path))


def test_equal_input_gives_equal_bytes_that_read_back(artifacts: Path, written: Path) -> None:
    assert written.read_bytes() == (artifacts / "b.afpack").read_bytes()
    manifest, digest = read_manifest(written)
    with zipfile.ZipFile(written) as archive:
        assert digest == hashlib.sha256(archive.read("manifest.json")).hexdigest()
        for name, entry in manifest["files"].items():
            assert hashlib.sha256(archive.read(name)).hexdigest() == entry["sha256"]
    assert "run/run.toml" in manifest["files"]


def deflated(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


Members = list[tuple[str | zipfile.ZipInfo, bytes]]


def forged(path: Path, members: Members, **changes: Any) -> Path:
    """An artifact whose manifest is true of ``members`` but for ``changes``."""
    files = {
        name if isinstance(name, str) else name.filename: {
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        for name, data in members
    }
    python = "{}.{}".format(*sys.version_info[:2])
    manifest = {"format": 1, "python": python, "complete": True, "roles": {}, "files": files}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest | changes))
        for name, data in members:
            archive.writestr(name, data)
    return path


def link() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("run/link")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    return info


BAD: list[tuple[str, Callable[[], Members], dict[str, Any], str]] = [
    ("up", lambda: [("run/../../x", b"")], {}, "'run/../../x' is not a safe path"),
    ("absolute", lambda: [("/etc/x", b"")], {}, "'/etc/x' is not a safe path"),
    ("backslash", lambda: [("run\\x", b"")], {}, "is not a safe path"),
    ("dot", lambda: [("run/./x", b"")], {}, "is not a safe path"),
    ("link", lambda: [(link(), b"/etc/passwd")], {}, "'run/link' is a link or a special file"),
    ("unlisted", lambda: [("run/x", b"1")], {"files": {}}, "'run/x' is not in its manifest"),
    ("missing", list, {"files": {"run/y": {"bytes": 1, "sha256": ""}}}, "'run/y' of its manifest is missing"),
    ("size", lambda: [("run/x", b"12")], {"files": {"run/x": {"bytes": 1, "sha256": ""}}}, "has 2 bytes; its manifest says 1"),
    ("format", list, {"format": 2}, "format 2; this AstraFlow reads 1"),
    ("role", list, {"roles": {"../x": {"wheels": [], "requirements": []}}}, "'../x' is not the name of a role"),
    ("marker", lambda: [("envs/engine/astraflow-artifact.json", b"")], {}, "is in no folder that an artifact has"),
    ("option", list, {"roles": {"engine": {"wheels": [], "requirements": ["--pre"]}}}, "is not a requirement"),
    ("url", list, {"roles": {"engine": {"wheels": [], "requirements": ["x @ http://evil/x.whl"]}}}, "is not a requirement"),
    ("wheel", list, {"roles": {"engine": {"wheels": ["../x.whl"], "requirements": []}}}, "'../x.whl' is not among its wheels"),
    ("digest", lambda: [("run/x", b"1")], {"files": {"run/x": {"bytes": 1, "sha256": "0" * 64}}}, "'run/x' has another digest"),
    ("python", list, {"python": "2.7"}, r"packed for Python 2.7, and this is Python 3"),
    ("platform", list, {"platform": "plan9-vax"}, "holds wheels for plan9-vax"),
    ("shape", list, {"files": []}, "manifest.json: "),
    ("compressed", lambda: [(deflated("run/x"), b"0" * 100)], {}, "'run/x' is compressed; an artifact has stored files only"),
    ("bomb", lambda: [("run/x", b"\0" * 40_000_000)], {}, "would take 40000000 bytes; at most 1000000 are allowed"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("members", "changes", "says"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_a_hostile_artifact_is_refused_and_leaves_nothing_usable(
    members: Callable[[], Members], changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    artifact = forged(tmp_path / "bad.afpack", members(), **changes)
    into = tmp_path / "into"
    with pytest.raises(ArtifactError) as refused:
        install(artifact, into, most_bytes=1_000_000)
    assert says in str(refused.value) and "bad.afpack" in str(refused.value)
    assert not list(into.rglob(installer.MARKER))
    assert {p.name for p in tmp_path.iterdir()} <= {"bad.afpack", "into"}


@pytest.mark.parametrize("cut", [0, 10, 300])
def test_a_cut_file_is_refused(written: Path, cut: int) -> None:
    data = written.read_bytes()
    written.write_bytes(data[: len(data) - cut] if cut else b"")
    with pytest.raises(ArtifactError, match=r"a\.afpack: damaged, or not made by `astraflow pack`"):
        read_manifest(written)


def test_the_commands_show_it_and_refuse_what_is_none(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", "--show", str(written)]) == 0
    assert "run/run.toml" in capsys.readouterr().out
    assert main(["unpack", str(written), "--role", "trainer", "--into", str(tmp_path / "a")]) == 2
    assert "has no role 'trainer'" in capsys.readouterr().err
    assert main(["unpack", str(tmp_path / "none.afpack"), "--into", str(tmp_path / "a")]) == 2
    assert "none.afpack" in capsys.readouterr().err


def test_a_list_of_members_larger_than_memory_is_not_read(tmp_path: Path) -> None:
    artifact = forged(tmp_path / "big.afpack", [])
    data = bytearray(artifact.read_bytes())
    at = data.rfind(b"PK\5\6")
    data[at + 12 : at + 16] = (1 << 31).to_bytes(4, "little")
    artifact.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"its list of members takes 2147483648 bytes"):
        read_manifest(artifact)


def test_an_environment_is_made_once_and_a_half_made_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def step(command: list[str], what: str) -> None:
        steps.append(what)
        if fails and what.startswith("pip"):
            raise ArtifactError("killed")
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)

    monkeypatch.setattr(installer, "_step", step)
    roles = {"engine": {"wheels": [], "requirements": []}}
    artifact = forged(tmp_path / "ok.afpack", [("run/run.toml", b"[run]")], roles=roles)
    fails = True
    with pytest.raises(ArtifactError, match="killed"):
        install(artifact, tmp_path / "into")
    fails = False
    run, pythons = install(artifact, tmp_path / "into")
    assert (run / "run.toml").read_bytes() == b"[run]"
    made = len(steps)
    assert install(artifact, tmp_path / "into") == (run, pythons)
    assert len(steps) == made == 4
    with pytest.raises(ArtifactError, match="has no role 'trainer'"):
        install(artifact, tmp_path / "into", ["trainer"])


def test_a_module_elsewhere_cannot_be_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "lib" / "reward_elsewhere.py").write_text(OWN_REWARD)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    config = TABLE_RUN.replace(
        'use = "exact"\npartial = "positions"', 'use = "reward_elsewhere:mine"'
    )
    with pytest.raises(UserError, match=r"reward_elsewhere\.py is outside"):
        contents(tmp_path / "run", config)


def instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


@pytest.mark.parametrize("role", [SERVICES, ENGINE])
def test_a_containerfile_has_a_pinned_base_a_user_without_rights_and_no_secret(
    written: Path, role: str
) -> None:
    text = containerfile(*read_manifest(written), str(written), role)
    found = instructions(text)
    keys = {"ARG", "FROM", "COPY", "RUN", "USER", "WORKDIR", "ENV", "ENTRYPOINT"}
    assert {key for key, _ in found} <= keys
    assert [rest.split()[0] for key, rest in found if key == "FROM"] == ["${BASE}", "${BASE}"]
    assert [rest for key, rest in found if key == "ARG"] == ["BASE"]  # without a default: no tag
    assert "python@sha256:" in text and ":latest" not in text
    last = max(at for at, (key, _) in enumerate(found) if key == "FROM")
    users = [at for at, (key, rest) in enumerate(found) if key == "USER" and int(rest) > 0]
    assert users and last < users[-1] < next(a for a, f in enumerate(found) if f[0] == "ENTRYPOINT")
    assert not re.search(r"token|secret|password", "".join(rest for _, rest in found), re.I)
    (entry,) = [json.loads(rest) for key, rest in found if key == "ENTRYPOINT"]
    assert entry[0].endswith(f"/envs/{role}/bin/python")
    (copied,) = [rest for key, rest in found if key == "COPY" and "--from" not in rest]
    assert copied.split()[0] == written.name
    assert "chmod -R a+rX" in text  # an installation is private to the user who made it


def test_a_containerfile_of_an_unknown_role_or_an_odd_name_is_refused(written: Path) -> None:
    manifest, digest = read_manifest(written)
    with pytest.raises(UserError, match=r"no role 'trainer' .it has: engine, services"):
        containerfile(manifest, digest, str(written), "trainer")
    with pytest.raises(UserError, match="rename the artifact"):
        containerfile(manifest, digest, "a b;c.afpack", ENGINE)
