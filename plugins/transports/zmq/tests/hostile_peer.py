"""A publisher's process that has the run's keys and sends wrong replies: each line of its input names the fault from
then on, and is printed again. At first it prints the announcement of its version."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import zmq

from astraflow_plugin_zmq.keys import secure
from astraflow_testing.conformance._transports.transport_rig import TOKEN, announcement
from astraflow_testing.weight_peers import content
from astraflow_weights.snapshot import BLOCK_SIZE, Snapshotter

MEGABYTE = bytes(1 << 20)


def main() -> None:
    """Answer until standard input ends."""
    snapshot = Snapshotter("solver").take(1, content(1), None)
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    secure(socket, TOKEN, server=True)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    told = announcement(snapshot.manifest, (f"tcp://127.0.0.1:{port}",))
    sys.stdout.write(json.dumps(asdict(told)) + "\n")
    sys.stdout.flush()
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    lie = "none"
    while True:
        ready = dict(poller.poll())
        if sys.stdin.fileno() in ready:
            line = sys.stdin.readline()
            if not line:
                return
            lie = line.strip()
            sys.stdout.write(line)
            sys.stdout.flush()
        if socket in ready:
            peer, what, *rest = socket.recv_multipart()
            if what == b"manifest":
                body = bytes(63 << 20) if lie == "manifest of zeros" else snapshot.encoded
                if lie == "manifest of four billion blocks":
                    body = b"\x81\xa6blocks\xdd\xff\xff\xff\xff"
                socket.send_multipart([peer, b"manifest", body])
            elif what == b"block":
                start = int(rest[-1]) * BLOCK_SIZE
                honest = bytes(snapshot.data[start : start + BLOCK_SIZE])
                pieces = {
                    "zeros": [bytes(len(honest))],
                    "a frame of more": [bytes(65 << 20)],
                    "thirty frames of a megabyte": [MEGABYTE] * 30,
                    "ten thousand frames": [b"x"] * 10_000,
                    "half": [honest[: len(honest) // 2]],
                    "a byte more": [honest, b"x"],
                }.get(lie, [honest])
                socket.send_multipart([peer, b"block", rest[-1], *pieces])


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])
    main()
