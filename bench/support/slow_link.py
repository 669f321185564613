"""A long, narrow link between two network namespaces of this host, with the kernel's own TCP at both ends.

    python -m bench.support.slow_link FILE MEGABYTES_PER_S ROUND_TRIP_MS [NUMBER NAMESPACE]

Two TUN devices, one in each namespace, are joined by a queue that delays and paces packets: kernels without
``netem`` have these too. With NUMBER and NAMESPACE its first end is in that namespace, which has the first end of
another link, and whoever is at its second end reaches the address of that one too. Ends at SIGTERM. Needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from bench.support.processes import announce

ADDRESSES = ("10.98.0.1", "10.98.0.2")
"""Of the two ends of the first link; those of a further one are 10.98.NUMBER.1 and .2."""
MTU = 9000
FIRST_WINDOW = 2
"""Packets of the first window: 18 kB, about the 10 packets of 1460 bytes of an ordinary link."""
QUEUE_BYTES = 16e6
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x1001


def enter(namespace: str) -> None:
    """Move this thread, and those that it starts, into a network namespace."""
    file = os.open(namespace, os.O_RDONLY)
    try:
        _call("setns", file, _CLONE_NEWNET)
    finally:
        os.close(file)


def possible() -> bool:
    """Whether this process may make network namespaces and TUN devices."""
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return False
    try:
        command = ["unshare", "--net", "ip", "tuntap", "add", "mode", "tun"]
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


class Link:
    """Both ends; ``namespaces`` are files to give to :func:`enter` while this process lives."""

    def __init__(
        self, megabytes_per_s: float, round_trip_ms: float, number: int = 0, near: str = ""
    ) -> None:
        self._rate, self._half = megabytes_per_s * 1e6, round_trip_ms / 2000
        self._devices: list[int] = []
        self.namespaces: list[str] = []
        for end in range(2):
            if near and end == 0:
                enter(near)
            else:
                _call("unshare", _CLONE_NEWNET)
            namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            self.namespaces.append(f"/proc/{os.getpid()}/fd/{namespace}")
            self._devices.append(_device(end, number))
        self._queues: list[deque[tuple[float, bytes]]] = [deque(), deque()]
        self._free = [0.0, 0.0]

    def carry(self) -> None:
        """Move packets, for ever."""
        while True:
            now = time.monotonic()
            due = min((queue[0][0] for queue in self._queues if queue), default=now + 1)
            ready, _, _ = select.select(self._devices, [], [], max(0.0, due - now))
            for device in ready:
                self._forward(self._devices.index(device))
            now = time.monotonic()
            for end, queue in enumerate(self._queues):
                while queue and queue[0][0] <= now:
                    os.write(self._devices[1 - end], queue.popleft()[1])

    def _forward(self, end: int) -> None:
        for _ in range(64):
            try:
                packet = os.read(self._devices[end], 65536)
            except BlockingIOError:
                return
            now = time.monotonic()
            self._free[end] = max(self._free[end], now)
            if (self._free[end] - now) * self._rate > QUEUE_BYTES:
                continue  # a full queue drops
            self._free[end] += len(packet) / self._rate
            self._queues[end].append((self._free[end] + self._half, packet))


def _device(end: int, number: int) -> int:
    """A TUN device in this thread's namespace, with its address and route."""
    name = f"wan{number}"
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _TUN_WITHOUT_HEADER))
    addresses = [address.replace("98.0.", f"98.{number}.") for address in ADDRESSES]
    here, there = addresses[end], addresses[1 - end]
    reached = {there} if end == 0 else {there, ADDRESSES[0]}
    for command in (
        "link set lo up",
        f"address add {here} peer {there} dev {name}",
        f"link set {name} mtu {MTU} txqueuelen 20000 up",
        *(f"route replace {to} dev {name} src {here} initcwnd {FIRST_WINDOW}" for to in reached),
    ):
        subprocess.run(["ip", *command.split()], check=True, timeout=30)
    return device


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}; the slow link needs root")


def main() -> int:
    """Entry point."""
    number, near = (int(sys.argv[4]), sys.argv[5]) if len(sys.argv) > 4 else (0, "")
    link = Link(float(sys.argv[2]), float(sys.argv[3]), number, near)
    announce(Path(sys.argv[1]), " ".join(link.namespaces))
    link.carry()
    return 0


if __name__ == "__main__":
    sys.exit(main())
