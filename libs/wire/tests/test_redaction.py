"""No secret of a configuration reaches what others read, and everything else stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from astraflow_wire.redaction import HIDDEN, hidden_texts, is_secret, redacted, without_secrets


@pytest.mark.parametrize(
    "table",
    [
        {"workflow": {"environment": {"server": {"environment": {"SEARCH_KEY": "S3CR"}}}}},
        {"environment": {"PLAIN": "S3CR"}},
        {"env": ["A=S3CR"]},
        {"headers": {"Authorization": "S3CR"}},
        {"api-key": "S3CR"},
        {"apiKey": "S3CR"},
        {"passphrase": "S3CR"},
        {"pwd": "S3CR"},
        {"bearer": "S3CR"},
        {"tokens": ["S3CR"]},
        {"api_key": {"first": {"x": "S3CR"}}},
        {"SEARCH_KEY": "S3CR"},
        {"reward.headers.x": "S3CR"},
        {"password": "$S3CR!"},
        {"args": ["--api-key", "S3CR"]},
        {"args": ["--api-key=S3CR"]},
        {"url": "http://host/?api_key=S3CR"},
        {"url": "http://host/?a=b&key=S3CR"},
        {"url": "http://u:p@S3CR@host/"},
        {"url": "http://u:S3/CR@host/"},
        {"url": "http://u:S3CR?x@host/"},
        {"url": "http://ann@corp:S3CR@host/"},
        {"urls": "http://a:80/x,http://u:S3CR@b"},
        {"said": "Authorization: Token S3CR"},
        {"said": "Bearer S3CRS3CR"},
        {"said": '{ use = "x", headers = { a = "S3CR" }, tokens = ["b", "S3CR"] }'},
        {"http://u:S3CR@host": 1},
    ],
    ids=str,
)
def test_secrets_are_hidden(table: dict[str, Any]) -> None:
    shown = json.dumps(without_secrets(table))
    assert "S3" not in shown and "CR" not in shown and HIDDEN in shown


def test_what_is_no_secret_stays() -> None:
    table = {
        "environment": {"use": "key_door", "answer_key": "answer", "tokens": 5},
        "sampling": {"max_tokens": 3, "stop_token": "</s>", "tokenizer": "plain"},
        "token": "$HF_TOKEN",
        "key": "run.steps",
        "url": "http://[::1]:8080/npm/@scope/x",
        "page": "http://host:8080/@me?step=3",
        "said": "key=run.steps max_tokens=5 expected x = 'y' of ann@host",
    }
    assert without_secrets(table) == table
    url = "postgres://u:p@host/runs?step=1"
    assert redacted(url) == "postgres://***@host/runs?step=1"


def test_known_secrets_are_hidden_in_other_texts() -> None:
    given = {"api_key": "sk-1234", "a": {"tokens": ["t0ken", "x"]}, "name": "plain"}
    known = hidden_texts(given)
    assert known == {"sk-1234", "t0ken", "x"}
    assert redacted("x: unknown key (received 'sk-1234', t0ken, plain)", known) == (
        "x: unknown key (received '***', ***, plain)"
    )


def test_names_of_secrets() -> None:
    for name in ("HF_TOKEN", "client_secret", "APIKey", "password_file", "x-api-key", "authtoken"):
        assert is_secret(name), name
    for name in ("answer_key", "max_staleness", "eos_token", "compass", "keys", "", "author"):
        assert not is_secret(name), name


def test_a_long_text_takes_little_time() -> None:
    for text in (
        "://" * 30_000,
        "a=" * 50_000,
        "://a:@" * 10_000,
        "x" * 200_000 + "=",
        "-" * 200_000,
    ):
        redacted(text)
