"""``astraflow certs``, and ``[tls]`` of a config with what it made."""

from __future__ import annotations

import socket
import stat
import tomllib
from pathlib import Path

import pytest

from astraflow_core.errors import ConfigError
from astraflow_runtime.cli import main
from astraflow_runtime.config import auto_transport
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.config.transport_security import check_tls, tls_of
from astraflow_testing.runs import TABLE_RUN
from astraflow_testing.tls_files import write_tls
from astraflow_wire.http.listening import HOST_ADDRESS
from astraflow_wire.http.tls import RunTls


def test_the_lines_that_it_prints_make_a_run_encrypted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    assert main(["certs", str(folder), "--days", "30"]) == 0
    lines = capsys.readouterr().out.split("\n\n")
    table = next(text for text in lines if text.startswith("[tls]"))
    file = tmp_path / "run.toml"
    file.write_text(TABLE_RUN + table)
    config = load_config(file).config
    tls = tls_of(config)
    assert tls is not None and tls.authority == folder / "authority.pem"
    assert check_tls(config) == pytest.approx(30, abs=0.1)
    assert tls.check([socket.gethostname(), "localhost", "127.0.0.1", "::1"]) > 0
    keys = list(folder.glob("*.key"))
    assert len(keys) == 3 and {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not any(b"PRIVATE" in public.read_bytes() for public in folder.glob("*.pem"))


def test_a_certificate_for_each_host_and_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path)
    assert main(["certs", folder, "--host", "gpu-1,10.0.0.11", "--host", "10.0.0.12"]) == 0
    printed = capsys.readouterr().out
    assert f'certificate = "{tmp_path}/{{host}}.pem"' in printed
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert main(["certs", folder, "--host", "gpu-1"]) == 2
    assert "already has gpu-1.pem, gpu-1.key, and nothing is overwritten" in capsys.readouterr().err
    assert main(["certs", folder, "--host", "late"]) == 0
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert after.items() > before.items() and after.keys() - before.keys() == {
        "late.pem",
        "late.key",
    }
    authority = tmp_path / "authority.pem"
    first = RunTls(authority, tmp_path / "gpu-1.pem", tmp_path / "gpu-1.key")
    assert first.check(["gpu-1", "10.0.0.11"]) > 0
    named = RunTls(authority, tmp_path / "{host}.pem", tmp_path / "{host}.key")
    monkeypatch.setenv(HOST_ADDRESS, "late")
    assert named.check(["late"]) > 0
    (tmp_path / "authority.key").unlink()
    assert main(["certs", folder, "--host", "later"]) == 2
    assert "authority.key cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [["--days", "0"], ["--host", "a/b"], ["--host", "a", "--host", "a"], ["--host", "operator"]],
)
def test_what_makes_no_sense_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    assert main(["certs", str(tmp_path / "new"), *wrong]) == 2
    assert f"{wrong[0]} " in capsys.readouterr().err and not (tmp_path / "new").exists()


def configured(folder: Path) -> Path:
    """A run with the certificates of a test, named relative to the configuration."""
    table = '[tls]\nauthority = "authority.pem"\ncertificate = "own.pem"\nprivate_key = "own.key"\n'
    file = folder / "run.toml"
    file.write_text(TABLE_RUN + table)
    return file


def test_a_run_is_refused_before_it_starts(tmp_path: Path) -> None:
    write_tls(tmp_path, days=-0.5)
    config = load_config(configured(tmp_path)).config
    with pytest.raises(ConfigError, match=r"tls\.certificate: .*own\.pem, .*has expired; make new"):
        check_tls(config)
    write_tls(tmp_path)
    assert check_tls(config) == pytest.approx(1, abs=0.1)
    beyond = load_config(configured(tmp_path), ['dataflow.host="10.9.8.7"']).config
    with pytest.raises(ConfigError, match=r"does not cover 10\.9\.8\.7; .*--host 10\.9\.8\.7"):
        check_tls(beyond)
    everywhere = load_config(configured(tmp_path), ['dataflow.host="0.0.0.0"']).config
    assert check_tls(everywhere)
    (tmp_path / "own.key").unlink()
    with pytest.raises(ConfigError, match=r"tls\.private_key: .*own\.key cannot be read"):
        check_tls(config)


def test_the_command_that_starts_a_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tls(tmp_path, hosts=("elsewhere",))
    assert main(["run", str(configured(tmp_path))]) == 2
    assert "does not cover 127.0.0.1" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_table_is_whole_and_kept_with_the_run(tmp_path: Path) -> None:
    from astraflow_runtime.config.saved import dump_toml

    write_tls(tmp_path)
    kept = tomllib.loads(dump_toml(load_config(configured(tmp_path)).config))["tls"]
    assert kept["authority"] == str(tmp_path / "authority.pem")
    assert kept["client_certificates"] is False
    file = tmp_path / "half.toml"
    file.write_text(TABLE_RUN + '[tls]\nauthority = "authority.pem"\n')
    with pytest.raises(ConfigError, match=r"tls\.certificate"):
        load_config(file)


def test_a_transport_that_nothing_encrypts_does_not_go_with_it(tmp_path: Path) -> None:
    write_tls(tmp_path)
    overrides = ["policies.solver.transport.use=collective"]
    with pytest.raises(
        ConfigError, match=r"'collective' has unencrypted connections.* name 'http' or 'zmq'"
    ):
        load_config(configured(tmp_path), overrides)
    plain = tmp_path / "plain.toml"
    plain.write_text(TABLE_RUN)
    with pytest.raises(ConfigError) as other:  # its engine lacks what a collective needs
        load_config(plain, overrides)
    assert "unencrypted" not in str(other.value)
    encrypted = load_config(configured(tmp_path))
    for loaded, offered in ((encrypted, False), (load_config(plain), True)):
        parts = (loaded.config, loaded.catalog, dict(loaded.components))
        transports = auto_transport._ends(*parts, "solver").transports
        assert "http" in transports and ("collective" in transports) is offered
