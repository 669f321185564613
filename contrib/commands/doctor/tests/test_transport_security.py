"""What the doctor says about ``[tls]``."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_contrib_doctor.finding import Finding
from astraflow_contrib_doctor.transport_security import of_tls
from astraflow_core.config.models import DataflowTable, RunConfig, TlsTable
from astraflow_testing.tls_files import write_tls


def look(folder: Path) -> list[Finding]:
    """Run the check on the files of a test in ``folder``."""
    table = TlsTable(
        authority=folder / "authority.pem",
        certificate=folder / "own.pem",
        private_key=folder / "own.key",
    )
    return list(of_tls(RunConfig.model_construct(dataflow=DataflowTable(), tls=table)))


def test_days_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tls(tmp_path)
    (few,) = look(tmp_path)
    assert few.level == "warning" and "expires in 1 days" in few.text
    assert 0.9 < few.figures["days_left"] <= 1 and "astraflow certs" in few.fix
    monkeypatch.setattr("astraflow_contrib_doctor.transport_security.FEW_DAYS", 0.5)
    (enough,) = look(tmp_path)
    assert (enough.level, enough.fix) == ("ok", "")


def test_files_that_keep_a_run_from_starting(tmp_path: Path) -> None:
    write_tls(tmp_path, days=-0.5)
    (expired,) = look(tmp_path)
    assert (expired.level, expired.subject) == ("problem", "tls.certificate")
    assert "has expired" in expired.text and "astraflow certs" in expired.fix
    write_tls(tmp_path, hosts=("elsewhere",))
    (other,) = look(tmp_path)
    assert "does not cover 127.0.0.1" in other.text and "--host 127.0.0.1" in other.fix


def test_a_key_that_others_may_read(tmp_path: Path) -> None:
    write_tls(tmp_path)
    (tmp_path / "own.key").chmod(0o640)
    findings = {each.subject: each for each in look(tmp_path)}
    key = findings["tls.private_key"]
    assert key.level == "warning" and key.fix == f"chmod 600 {tmp_path}/own.key"


def test_a_run_without_it_says_nothing() -> None:
    assert list(of_tls(RunConfig.model_construct(tls=None))) == []
