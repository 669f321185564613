"""CURVE keys of a run, derived from its token (CurveZMQ, rfc.zeromq.org/spec/26).

Both sides have the token, so both know both public keys. The server's is never sent: who does not know it
cannot begin a handshake.
"""

from __future__ import annotations

import hashlib

import zmq
from zmq.utils import z85


def secure(socket: zmq.Socket[bytes], token: str, *, server: bool) -> None:
    """Make ``socket`` accept only peers that have ``token``; call this before it binds or connects."""
    secret, public = _pair(token, "server" if server else "client")
    socket.curve_secretkey, socket.curve_publickey = secret, public
    if server:
        socket.curve_server = True
    else:
        socket.curve_serverkey = _pair(token, "server")[1]


def _pair(token: str, side: str) -> tuple[bytes, bytes]:
    seed = hashlib.blake2b(
        token.encode(), digest_size=32, key=side.encode(), person=b"astraflow-curve"
    )
    secret = z85.encode(seed.digest())
    return secret, zmq.curve_public(secret)
