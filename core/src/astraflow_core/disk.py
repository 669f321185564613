"""Telling a full disk, which may pass, from other trouble with files."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Disk full, quota used up, largest size of a file reached."""

_FULL_BYTES = 1 << 20


def is_full(error: BaseException, folder: Path) -> bool:
    """Whether what went wrong while ``folder`` was written is that there is no room. Libraries that write
    files of their own often say so in their text only, or not at all: then the disk itself is asked."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _CODES
    if any(os.strerror(code) in str(error) for code in _CODES):
        return True
    return shutil.disk_usage(folder).free < _FULL_BYTES
