"""Where a gateway listens, and what it takes to be reached from elsewhere."""

from __future__ import annotations

import asyncio
import ssl
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from gateway_agents import AMPLE, QWEN, USER

from astraflow_core.errors import UserError
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.episode import Episode, Rules
from astraflow_gateway.listening import Listening
from astraflow_gateway.server import Gateway
from astraflow_launching.certificates import self_signed
from astraflow_testing.scripted_policies import ScriptedPolicies
from astraflow_wire.http.tls import HTTPS_ONLY


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("pair")
    files = folder / "certificate.pem", folder / "key.pem"
    made = self_signed(("127.0.0.1", "localhost"), timedelta(days=1))
    files[0].write_bytes(made.public)
    files[1].write_bytes(made.key)
    return files


def test_an_agent_plays_over_tls(pair: tuple[Path, Path]) -> None:
    async def play() -> None:
        policies = ScriptedPolicies(["p"], says={"p": ["23"]}, tokenizer=QWEN.tokenizer())
        engines = policies.engines()
        formats = {name: ChatFormat(engine) for name, engine in engines.items()}
        listening = Listening("127.0.0.1", 0, "localhost", *pair)
        trusted = ssl.create_default_context(cafile=str(pair[0]))
        async with Gateway(listening) as gateway, httpx.AsyncClient(verify=trusted) as client:
            assert gateway.url.startswith("https://localhost:")
            key = gateway.begin(Episode(engines, formats, Rules(AMPLE), "p"))
            headers = {"authorization": f"Bearer {key}"}
            body = {"messages": [USER]}
            url = f"{gateway.url}/v1/chat/completions"
            reply = await client.post(url, json=body, headers=headers)
            assert reply.json()["choices"][0]["message"]["content"] == "23"
            plain = await client.post(url.replace("https", "http"), json=body, headers=headers)
            assert plain.status_code == 400 and plain.json() == {"error": HTTPS_ONLY}
            async with httpx.AsyncClient() as stranger:
                with pytest.raises(httpx.ConnectError, match="certificate"):
                    await stranger.post(url, json=body, headers=headers)

    asyncio.run(play())


def test_a_certificate_that_cannot_be_used_is_named(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    missing = tmp_path / "none.pem"
    for certificate, key in ((missing, pair[1]), (pair[0], missing), (pair[1], pair[0])):
        with pytest.raises(UserError, match=f"certificate {certificate} and private_key {key}"):
            Gateway(Listening(certificate=certificate, private_key=key))


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "10.0.0.1", "gpu-7"])
def test_plain_text_beyond_loopback_takes_a_word(bind: str) -> None:
    with pytest.raises(UserError, match="would be sent in clear text: set certificate and"):
        Listening(bind)
    assert Listening(bind, allow_plain_text=True).tls() is None


def test_the_url_is_that_under_which_others_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-7")
    with pytest.raises(UserError, match="both certificate and private_key"):
        Listening(certificate=Path("c.pem"))
    assert Listening().url(80) == "http://127.0.0.1:80"
    assert Listening("::1").url(80) == "http://[::1]:80"
    assert Listening("0.0.0.0", allow_plain_text=True).url(80) == "http://gpu-7:80"
    pair = {"certificate": Path("c.pem"), "private_key": Path("k.pem")}
    assert Listening("10.0.0.1", address="gpu.lan", **pair).url(80) == "https://gpu.lan:80"
