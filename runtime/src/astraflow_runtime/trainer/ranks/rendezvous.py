"""The rendezvous of a trainer's ranks, derived from torchrun's environment variables and the run's
token. On one host a socket in a private folder, between hosts TCP to the address that torchrun
gave, encrypted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from astraflow_core.errors import UserError
from astraflow_core.types import Ranks

HEARTBEAT_MS = 5000
"""Between hosts: a host that is silent for four intervals counts as gone."""
PORTS = range(20000, 30000)


def ranks_of(environment: Mapping[str, str], wanted: int, who: str, deadline_s: float) -> Ranks:
    """The rank of this process among the ``wanted`` ranks of a trainer, from torchrun."""
    if wanted == 1:
        return Ranks(deadline_s=deadline_s)
    try:
        rank, size, local = (int(environment[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except KeyError as missing:
        raise UserError(
            f"{who} has ranks = {wanted}, and {missing} is not set: start it with "
            f"`python -m torch.distributed.run --nproc-per-node {wanted} -m astraflow_runtime trainer …`"
        ) from missing
    if size != wanted:
        raise UserError(f"{who} has ranks = {wanted}, but {size} were started")
    return Ranks(rank, size, local, deadline_s)


@dataclass(frozen=True)
class RankRendezvous:
    """The rendezvous of the ranks of one start of a trainer. ``host`` is empty if all are on this
    host.
    """

    who: str
    ranks: Ranks
    key: bytes
    host: str

    @classmethod
    def of(
        cls, who: str, ranks: Ranks, token: str, environment: Mapping[str, str]
    ) -> RankRendezvous:
        """The rendezvous of this start of ``who``, from torchrun's variables."""
        names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
        start = "\0".join([who, *(environment.get(name, "") for name in names)])
        key = hashlib.blake2b(start.encode(), key=hashlib.sha256(token.encode()).digest()).digest()
        alone = environment.get("LOCAL_WORLD_SIZE", str(ranks.size)) == str(ranks.size)
        return cls(who, ranks, key, "" if alone else environment["MASTER_ADDR"])

    @property
    def name(self) -> str:
        """The name of the folder with the socket."""
        return self.key.hex()[:24]

    @property
    def port(self) -> int:
        """The TCP port."""
        return PORTS[int.from_bytes(self.key[:4], "little") % len(PORTS)]

    def secure(self, socket: zmq.Socket[bytes], server: bool) -> None:
        """Set the keys. The public key of rank 0 is never sent, so only a process with the token
        can know it.
        """
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 4 * HEARTBEAT_MS)
        secret = z85.encode(hashlib.sha256(b"rank 0" + self.key).digest())
        if server:
            socket.curve_server = True
            socket.curve_secretkey = secret
        else:
            socket.curve_serverkey = zmq.curve_public(secret)
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
