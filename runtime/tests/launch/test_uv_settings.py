"""uv is used only where it would install what pip does."""

from __future__ import annotations

import pytest

from astraflow_runtime.launch import uv_settings

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


def test_constraints_of_pip_and_of_the_call_both_hold() -> None:
    variables = {"UV_CONSTRAINT": "/a.txt /b.txt", "UV_INDEX": "https://a"}
    assert uv_settings.constraints_of(variables) == ["-c", "/a.txt", "-c", "/b.txt"]
    assert variables == {"UV_INDEX": "https://a"}
    assert uv_settings.constraints_of(variables) == []
