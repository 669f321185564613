"""What receiver and publisher say: frames of bytes, numbers in ASCII.

======================================  =======================================================
receiver (DEALER)                       publisher (ROUTER)
======================================  =======================================================
``manifest``, version, reader           ``manifest``, msgpack
``block``, version, reader, index       ``block``, index, bytes in pieces, a frame each
``leave``, version, reader
any, but not possible                   ``refused``, text
======================================  =======================================================
"""

from __future__ import annotations

MAX_CREDIT = 32
"""Blocks that the publisher has under way to one receiver at most; what is asked beyond is not answered."""
PIECE = 256 << 10
"""Bytes of a piece of a block: one that fits the nearest caches is copied and encrypted there, and its memory is
used again at once."""
MAX_REQUEST = 1024
"""Bytes of a frame of a request."""
MANIFEST, BLOCK, LEAVE, REFUSED = b"manifest", b"block", b"leave", b"refused"


def number(text: bytes) -> int:
    """A number of a frame; raises ``ValueError``."""
    if not (0 < len(text) <= 18 and text.isdigit()):
        raise ValueError("expected a number")
    return int(text)
