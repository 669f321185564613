"""Namespaces: processes, a network, objects of IPC and a tree of files of the sandbox's own."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence

from astraflow_sandbox.guest import kernel

OWN_FOLDER = "/tmp"  # noqa: S108 - of the new tree
_OLD = "/.old"
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
_DETACH = 2
_MOUNT_SETATTR, _PIVOT_ROOT = 442, {"x86_64": 155, "aarch64": 41}
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4


def leave() -> None:
    """Leave the namespaces of the host; the next child is the first process of the new one. Who is not root becomes the
    owner of a user namespace."""
    user, group = os.getuid(), os.getgid()
    flags = kernel.NEW_PID | kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS
    kernel.checked(kernel.libc.unshare(flags | (kernel.NEW_USER if user else 0)), "namespaces")
    if user:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    socket.sethostname("sandbox")


def build_tree(readable: Sequence[str], devices: Sequence[str], folders: Sequence[str]) -> None:
    """Make a tree of files with ``readable`` and ``devices`` of the host, read-only, the root of this process,
    in its own namespace: the process that cleans up keeps that of the host. Each of ``folders``, absolute
    names such as ``/app``, leads into the programs' own folder."""
    kernel.checked(kernel.libc.unshare(kernel.NEW_NS), "namespaces")
    _mount(None, "/", None, _REC | _PRIVATE)
    base = OWN_FOLDER  # any folder will do: after the pivot the host's shows again below _OLD
    _mount("sandbox", base, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
    os.mkdir(base + _OLD)
    number = _PIVOT_ROOT[os.uname().machine]
    kernel.system_call("pivot_root", number, base.encode(), (base + _OLD).encode())
    os.chdir("/")
    done: list[str] = []
    for path in sorted(readable):
        if not any(path.startswith(f"{each}/") for each in done):
            done += _show(path)
    for path in devices:
        if os.path.exists(_OLD + path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT, 0o644))
            _mount(_OLD + path, path, None, _BIND)
    os.makedirs(OWN_FOLDER, exist_ok=True)
    for path in folders:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(OWN_FOLDER + path, path)
    _mount(None, _OLD, None, _REC | _PRIVATE)
    kernel.checked(kernel.libc.umount2(_OLD.encode(), _DETACH), "umount")
    os.rmdir(_OLD)


def seal_tree() -> None:
    """Make everything read-only where no other file system is mounted."""
    _mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)


def processes() -> int:
    """A descriptor of ``/proc`` of this namespace, which no path leads to; :class:`OSError` where the host has hidden parts
    of its ``/proc``."""
    os.makedirs("/proc", exist_ok=True)
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    found = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    kernel.checked(kernel.libc.umount2(b"/proc", _DETACH), "umount")
    return found


def mount_own_folder(
    size_mb: int, user: int, group: int, *, again: bool = False, executable: bool = False
) -> None:
    """Give programs an empty folder in memory of at most ``size_mb``; ``again``: in the place of the last one;
    ``executable``: what they write there can be executed."""
    if again:
        os.chdir("/")
        kernel.checked(kernel.libc.umount2(OWN_FOLDER.encode(), _DETACH), "umount")
    options = f"size={size_mb}m,nr_inodes={size_mb * 256},mode=700,uid={user},gid={group}"
    flags = _NOSUID | _NODEV | (0 if executable else _NOEXEC)
    _mount("own", OWN_FOLDER, "tmpfs", flags, options)


def _show(path: str) -> list[str]:
    """Show ``path`` of the host at its place, or the link that it is; what does not exist is left out."""
    old = _OLD + path
    if os.path.islink(old):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(os.readlink(old), path)
        return [path]
    if not os.path.exists(old):
        return []
    if os.path.isdir(old):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT, 0o644))
    _mount(old, path, None, _BIND | _REC)
    attributes = struct.pack("=4Q", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
    kernel.system_call(
        f"mount_setattr {path}",
        _MOUNT_SETATTR,
        _AT_FDCWD,
        path.encode(),
        _AT_RECURSIVE,
        attributes,
        len(attributes),
    )
    return [path]


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    texts = [None if each is None else each.encode() for each in (source, target, kind)]
    more = None if options is None else options.encode()
    kernel.checked(kernel.libc.mount(*texts, flags, more), f"mount {target}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
