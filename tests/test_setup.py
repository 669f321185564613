"""What the set-up installs, and that it uses uv only where uv would install what pip does."""

from __future__ import annotations

import dev
import pytest
import uv_settings
from workspace import ROOT, metadata_of, required

ALWAYS = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1"}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("", {}),
        ("global.index-url='https://a/simple'", {"UV_DEFAULT_INDEX": "https://a/simple"}),
        (
            "global.extra-index-url='\\nhttps://a/simple\\nfile:///b'\nglobal.timeout='9'",
            {"UV_INDEX": "https://a/simple file:///b"},
        ),
        ("global.find-links='/a /b'", {"UV_FIND_LINKS": "/a,/b"}),
        (
            (":env:.index-url='https://env'\nglobal.index-url='https://file'\n"
            "install.index-url='https://install'\ndownload.index-url='https://download'"),
            {"UV_DEFAULT_INDEX": "https://env"},
        ),
        ("global.cert='/ca.pem'\nglobal.trusted-host='a b'",
         {"SSL_CERT_FILE": "/ca.pem", "UV_INSECURE_HOST": "a b"}),
        ("global.constraint='/etc/pip/caps.txt'", {"UV_CONSTRAINT": "/etc/pip/caps.txt"}),
    ],
)  # fmt: skip
def test_what_both_know_is_translated(listed: str, expected: dict[str, str]) -> None:
    assert uv_settings.translated(listed) == ALWAYS | expected


@pytest.mark.parametrize("key", ["no-index", "client-cert", "proxy", "only-binary", "unheard-of"])
def test_what_only_pip_knows_leaves_it_to_pip(key: str) -> None:
    assert uv_settings.translated(f"global.index-url='https://a'\nglobal.{key}='x'") is None


@pytest.mark.parametrize(
    ("arguments", "profile"),
    [
        ([], "run"),
        (["--set", "run.seed=1"], "run"),
        (["examples/quickstart.toml"], "run"),
        (["--no-live", "examples/smollm2.toml"], "test"),
        ([str(ROOT / "examples" / "two_policies.toml"), "--json"], "test"),
        (["/elsewhere/mine.toml"], "run"),
        (["--resume", "runs/quickstart-1"], "run"),
    ],
)
def test_an_example_is_run_with_every_plugin_installed(
    arguments: list[str], profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert dev.profile_of(arguments) == profile


def _run_requirements(package: dev.Package) -> set[str]:
    project = metadata_of(package.path)["project"]
    extras = project.get("optional-dependencies", {})
    return required([*project.get("dependencies", ()), *extras.get("runtime", ())])


def test_what_the_quickstart_installs_needs_no_other_package_of_the_workspace() -> None:
    """A package that is not published could come from nowhere else."""
    packages = dev.packages()
    names = {package.name for package in packages}
    installed = {package.name for package in packages if package.quickstart}
    assert installed
    lacking = {
        f"{package.name} needs {name}: set [tool.astraflow] quickstart there"
        for package in packages
        if package.quickstart
        for name in _run_requirements(package) & names - installed
    }
    assert not lacking, "\n".join(sorted(lacking))
