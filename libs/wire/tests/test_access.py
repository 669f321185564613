"""Tokens with restricted rights: who can make one, what it contains, and when it expires."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from astraflow_core.shared_secret import shared_secret
from astraflow_wire.http.access import (
    EVERYTHING,
    ROLES,
    Access,
    Grant,
    only_shared,
    presented,
    process_token,
    shares,
)
from astraflow_wire.http.auth import bearer, new_token

TOKEN, OTHER = "the-token-of-this-run", "that-of-another"
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}", fullmatch=True)


def shown(token: str) -> str:
    return bearer(token)["authorization"]


@given(st.sampled_from(ROLES), NAMES, st.integers(0, 10**6), st.integers(0, 10**9))
@example("viewer", "a.b.c", 3, 0)
def test_a_token_says_whose_it_is(role, name, generation, lasts):
    access = Access(TOKEN, clock=lambda: 10.0)
    ends = 11 + lasts if lasts else 0
    made = process_token(TOKEN, role, name, generation, ends)
    assert access.grant(shown(made)) == Grant(role, name, generation, ends)
    assert Access(OTHER).grant(shown(made)) is None
    assert TOKEN not in made


@given(st.sampled_from(ROLES), NAMES, st.data())
def test_no_changed_token_is_valid(role, name, data):
    own = shown(process_token(TOKEN, role, name, 1, 2000))
    at = data.draw(st.integers(len("Bearer "), len(own) - 1))
    letter = data.draw(st.characters(min_codepoint=33, max_codepoint=126))
    changed = own[:at] + letter + own[at + 1 :]
    found = Access(TOKEN, clock=lambda: 10.0).grant(changed)
    assert (found is not None) == (changed == own or changed.partition("~")[0] == own)


@given(st.binary(max_size=200))
def test_arbitrary_headers_grant_nothing(header):
    for access in (Access(TOKEN), Access(process_token(TOKEN, "raas", "raas-0"))):
        assert access.grant(header) is None
        assert access.grant(b"Bearer af1." + header) is None


def test_the_signature_is_an_hmac_of_the_text():
    text, _, signature = process_token(TOKEN, "viewer", "ada", 2, 99).rpartition(".")
    key = hmac.new(TOKEN.encode(), b"astraflow access", hashlib.sha256).digest()
    own = hmac.new(key, b"af1.viewer.ada.2.99", hashlib.sha256).digest()
    assert text == "af1.viewer.ada.2.99"
    assert signature == base64.urlsafe_b64encode(own).decode().rstrip("=")


def test_tokens_end_and_are_revoked():
    now = [10.0]
    access = Access(TOKEN, clock=lambda: now[0])
    brief, long = (process_token(TOKEN, "viewer", "ada", 0, ends) for ends in (12, 0))
    other = process_token(TOKEN, "viewer", "bob")
    assert access.grant(shown(brief)) and access.grant(shown(long))
    now[0] = 12.0
    assert access.grant(shown(brief)) is None
    assert access.revoke("viewer", "ada") == 1
    assert access.grant(shown(long)) is None and access.grant(shown(other))
    assert access.grant(shown(process_token(TOKEN, "viewer", "ada", 1)))
    assert Access(TOKEN, access.oldest).grant(shown(long)) is None


def test_who_had_a_valid_token_learns_why_it_is_no_longer():
    now = [10.0]
    access = Access(TOKEN, clock=lambda: now[0])
    brief, long = (process_token(TOKEN, "viewer", "ada", 0, ends) for ends in (12, 0))
    now[0] = 12.0
    assert access.refusal(shown(brief)) == (
        "the token of viewer 'ada' ended at 1970-01-01 00:00:12 UTC; whoever has the token of the run can make another "
        "with `astraflow token`"
    )
    access.revoke("viewer", "ada")
    assert access.refusal(shown(long)).startswith("the token of viewer 'ada' was revoked; ")
    assert access.refusal(None).startswith("there is no token; pass")
    for foreign in (
        process_token(OTHER, "viewer", "ada", 0, 12),
        OTHER,
        "af1.viewer.ada.0.12.AAAA",
    ):
        assert access.refusal(shown(foreign)).startswith("the token is not of this run; pass")


def test_a_process_knows_the_runs_token_and_its_own_and_no_other():
    own = process_token(TOKEN, "raas", "raas-0")
    access = Access(own)
    assert access.grant(shown(TOKEN)) == EVERYTHING == access.grant(shown(own))
    for another in (
        OTHER,
        process_token(TOKEN, "raas", "raas-1"),
        process_token(TOKEN, "operator", "ada"),
        shared_secret(TOKEN),
        only_shared(own),
    ):
        assert access.grant(f"Bearer {another}") is None


def test_processes_share_a_secret_that_neither_shows_the_dataflow():
    raas, trainer = process_token(TOKEN, "raas", "r"), process_token(TOKEN, "trainer", "p")
    secret = shared_secret(TOKEN)
    assert {shared_secret(raas), shared_secret(trainer), shared_secret(only_shared(raas))} == {
        secret
    }
    assert secret not in shown(raas) and presented(TOKEN) == TOKEN
    assert shares(secret.encode(), secret) and shares(TOKEN.encode(), secret)
    for stranger in (b"", b"~", OTHER.encode(), process_token(TOKEN, "viewer", "ada").encode()):
        assert not shares(stranger, secret)
    assert shared_secret(process_token(TOKEN, "viewer", "ada")) != secret


def test_a_run_without_a_token_lets_all_in_and_derives_none():
    assert Access("").grant(None) == EVERYTHING
    assert process_token("", "raas", "r") == "" == only_shared("")


@pytest.mark.parametrize("name", ["", ".a", "a b", "a/b", "ä", "a" * 101, "a~b"])
def test_a_name_is_a_name(name):
    with pytest.raises(ValueError, match="is not a name"):
        process_token(TOKEN, "raas", name)


def test_a_token_with_fewer_rights_derives_none():
    with pytest.raises(ValueError, match="only the token of the run"):
        process_token(process_token(TOKEN, "viewer", "ada"), "operator", "ada")


def test_tokens_of_runs_are_not_taken_for_those_of_processes():
    assert not any(new_token().startswith("af1.") or "~" in new_token() for _ in range(50))
    assert shared_secret("with~mark") not in ("", "mark")
