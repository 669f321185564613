"""Hosts for tests, each a network namespace of this machine, with a wall clock of its own if it is to have one.

Links are shaped by what kernels have without ``netem``: rates by ``tbf``, delays by :mod:`bench.support.slow_link`. NAT is that
of the kernel, set with ``nft``. ``nft`` and ``libfaketime`` are unpacked from Debian's packages.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.support import slow_link
from bench.support.processes import end_of, started_in

from astraflow_testing.debian import program, unpacked

HUB = "10.97.0.254"
"""The address of the router, among those of the hosts."""
LINK = 5
"""The number of the long link."""
NFT = ("nftables", "libnftables1", "libnftnl11", "libmnl0", "libjansson4", "libxtables12", "libedit2", "libgmp10")  # fmt: skip
MASQUERADE = """table ip nat {{
  chain out {{
    type nat hook postrouting priority srcnat
    ip saddr {inside} oifname "br0" masquerade
  }}
}}
"""
Address = tuple[str, int]
T = TypeVar("T")


@dataclass(frozen=True)
class NetworkHost:
    """A network namespace, by its file; ``variables`` are for the processes of the host, and set its clock."""

    namespace: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def sh(self, command: str) -> None:
        """A command on this host."""
        subprocess.run(self.within(command.split()), check=True, timeout=30, capture_output=True)

    def within(self, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` on this host."""
        return ["nsenter", f"--net={self.namespace}", *command]

    def call(self, act: Callable[[], T]) -> T:
        """What ``act`` returns on this host; in a thread of its own, which stays there."""
        made: list[T] = []

        def work() -> None:
            slow_link.enter(self.namespace)
            made.append(act())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        return made[0]

    def peers(self, port: int | None = None) -> set[str]:
        """The addresses of those that are connected to this host, or to one port of it."""
        tables = subprocess.run(
            self.within(["cat", "/proc/net/tcp"]), check=True, timeout=30, capture_output=True, text=True
        )  # fmt: skip
        found = set()
        for line in tables.stdout.splitlines()[1:]:
            _, own, other, state, *_ = line.split()
            if port in (None, int(own.rpartition(":")[2], 16)) and state == "01":
                found.add(socket.inet_ntoa(bytes.fromhex(other.partition(":")[0])[::-1]))
        return found


def impossible() -> str:
    """Why this process cannot make such hosts; empty if it can."""
    if not slow_link.possible():
        return "needs root and /dev/net/tun, for network namespaces"
    for command in ("ip link add v0 type veth peer name v1", f"tc qdisc add dev lo {_rate(10)}"):
        done = subprocess.run(["unshare", "--net", *command.split()], capture_output=True)
        if done.returncode:
            return f"this kernel refuses `{command}`: {done.stderr.decode(errors='replace').strip()}"  # fmt: skip
    return ""


class NetworkHosts:
    """Hosts around a bridge, on which a router has the address :data:`HUB`. ``base`` keeps unpacked packages."""

    def __init__(self, stack: ExitStack, base: Path) -> None:
        self._stack, self._base, self._count = stack, base, 0
        self.hub = self._namespace()
        for command in (
            "ip link add br0 type bridge",
            f"ip address add {HUB}/24 dev br0",
            "ip link set br0 up",
        ):
            self.hub.sh(command)

    def add(self, address: str, megabits_per_s: float | None = None) -> NetworkHost:
        """A host with this address, whose link has this rate in both directions."""
        host = self._namespace()
        self._count += 1
        name = f"port{self._count}"
        self.hub.sh(f"ip link add {name} type veth peer name eth0")
        pid = host.namespace.split("/")[2]
        self.hub.sh(f"ip link set eth0 netns {pid}")
        self.hub.sh(f"ip link set {name} master br0 up")
        host.sh(f"ip address add {address}/24 dev eth0")
        host.sh("ip link set eth0 up")
        if megabits_per_s is not None:
            self.hub.sh(f"tc qdisc add dev {name} {_rate(megabits_per_s)}")
            host.sh(f"tc qdisc add dev eth0 {_rate(megabits_per_s)}")
        return host

    def behind_nat(
        self, megabytes_per_s: float, round_trip_ms: float, clock_s: int = 0
    ) -> NetworkHost:
        """A host at the end of a long link, of which the others see the address of the router only."""
        folder = self._base / "link"
        folder.mkdir()
        arguments = (str(megabytes_per_s), str(round_trip_ms), str(LINK), self.hub.namespace)
        link = self._stack.enter_context(started_in(folder, "bench.support.slow_link", *arguments))
        host = NetworkHost(link.url.split()[1], self._clock(clock_s))
        inside = slow_link.ADDRESSES[1].replace("98.0.", f"98.{LINK}.")
        host.sh(f"ip route add {HUB.rpartition('.')[0]}.0/24 dev wan{LINK} src {inside}")
        self._nft(MASQUERADE.format(inside=inside))
        subprocess.run(
            self.hub.within(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]), check=True
        )
        return host

    def behind_proxy(self, addresses: Sequence[Address], clock_s: int = 0) -> NetworkHost:
        """A host without a link: a forwarder alone takes what it dials to ``addresses``, which it has itself."""
        host = NetworkHost(self._namespace().namespace, self._clock(clock_s))
        for own in {address for address, _ in addresses}:
            host.sh(f"ip address add {own}/32 dev lo")
        for address in addresses:
            listener = host.call(partial(socket.create_server, address))
            self._stack.callback(listener.close)
            arguments = (listener, self.hub.namespace, address)
            threading.Thread(target=_forward, args=arguments, daemon=True).start()
        return host

    def _namespace(self) -> NetworkHost:
        process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 600"],
            stdout=subprocess.PIPE,
        )
        self._stack.callback(end_of, process)
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        return NetworkHost(f"/proc/{process.pid}/ns/net")

    def _clock(self, shift_s: int) -> dict[str, str]:
        """The variables of processes whose wall clock is ``shift_s`` ahead; other clocks stay."""
        if not shift_s:
            return {}
        library = next(unpacked(self._base.parent, "libfaketime").glob("**/libfaketime.so.1"))
        keep = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
        return {"LD_PRELOAD": str(library), "FAKETIME": f"{shift_s:+d}s", **keep}

    def _nft(self, rules: str) -> None:
        nft, variables = program("nft"), dict(os.environ)
        if nft is None:
            root = unpacked(self._base.parent, *NFT)
            nft = str(root / "usr/sbin/nft")
            variables["LD_LIBRARY_PATH"] = str(next(root.glob("**/libnftables.so.1")).parent)
        done = subprocess.run(
            self.hub.within([nft, "-f", "-"]), input=rules, env=variables, timeout=30, check=False, text=True, capture_output=True
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def _rate(megabits_per_s: float) -> str:
    return f"root tbf rate {megabits_per_s:g}mbit burst 64kb latency 200ms"


def _forward(listener: socket.socket, hub: str, address: Address) -> None:
    slow_link.enter(hub)
    with suppress(OSError):  # closed by the end of the test
        while True:
            inside, _ = listener.accept()
            outside = socket.create_connection(address, 10)
            threading.Thread(target=_pump, args=(inside, outside), daemon=True).start()


def _pump(inside: socket.socket, outside: socket.socket) -> None:
    with inside, outside, selectors.DefaultSelector() as ready, suppress(OSError):
        ready.register(inside, selectors.EVENT_READ, outside)
        ready.register(outside, selectors.EVENT_READ, inside)
        while True:
            for key, _ in ready.select():
                source: socket.socket = key.fileobj  # type: ignore[assignment]
                if not (data := source.recv(65536)):
                    return
                key.data.sendall(data)
