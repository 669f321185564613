"""The layers of the sandbox: each is tried, and those that this host lacks are reported with the reason."""

from __future__ import annotations

import os
import resource
import shutil
import sysconfig
import tempfile
from contextlib import suppress
from typing import Any

from astraflow_sandbox.guest import cgroup, kernel, landlock, namespaces, seccomp

SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
OPEN_FILES = 64
PROCESSES = 64
ZYGOTE_MB = 64
"""Memory of all processes together beyond that of programs: the zygote and its libraries."""
FIRST_UID, UIDS = 61184, 4096
"""Users of programs where the caller is root; systemd keeps this range free for such a use."""


class IsolationLayers:
    """What confines the programs of one zygote. ``active`` and ``missing`` (name: reason) list its layers."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self.active: list[str] = []
        self.missing: dict[str, str] = {}
        self._rules = self._proc = -1
        self._groups: cgroup.Groups = []
        self._folder = ""
        self._filter = b""
        root = os.getuid() == 0 and self._wanted("user")
        number = FIRST_UID + os.getpid() % UIDS
        self._user, self._group = (number, number) if root else (os.getuid(), os.getgid())
        library = sysconfig.get_paths()
        self._readable = sorted(
            {*SYSTEM_FOLDERS, library["stdlib"], library["platstdlib"], *settings["readable"]}
        )

    @property
    def own_folder(self) -> str:
        """The folder in which programs start."""
        return namespaces.OWN_FOLDER if "files" in self.active else f"{self._folder}/program"

    def _wanted(self, layer: str) -> bool:
        return bool(self._settings["isolated"]) and layer not in self._settings["without"]

    def _try(self, layer: str, act: Any) -> None:
        if not self._settings["isolated"]:
            return
        try:
            if not self._wanted(layer):
                raise OSError("was left out")
            act()
            self.active.append(layer)
        except OSError as error:
            self.missing[layer] = error.strerror or str(error)

    # --- before the first process of the namespaces ---------------------------------------------

    def leave_host(self) -> None:
        """Leave the namespaces, where that is possible, make the cgroup and the folder."""
        self._try("cgroup", self._make_groups)
        self._try("namespaces", namespaces.leave)
        self._folder = tempfile.mkdtemp(prefix="astraflow-program-", dir=self._settings["folder"])
        os.chmod(self._folder, 0o711)  # noqa: S103 - the user of programs passes it

    def remove(self) -> None:
        """Remove the cgroup and the folder outside of the namespaces."""
        cgroup.remove(self._groups)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make_groups(self) -> None:
        memory = self._settings["memory_mb"] + self._settings["disk_mb"] + ZYGOTE_MB
        self._groups = cgroup.make(memory * kernel.MB, PROCESSES + 2)

    # --- in it ----------------------------------------------------------------------------------

    def enter(self) -> None:
        """Build what the zygote needs, and see what each program can be held to."""
        if "cgroup" in self.active:
            cgroup.join(self._groups)
        if "namespaces" in self.active:
            self._try("files", self._build_tree)
        else:
            self.missing["files"] = "needs namespaces"
        if "files" not in self.active:
            self._open_proc_of_host()
        if os.getuid() == 0:
            self._try("user", lambda: None)
        self._try("seccomp", self._prepare_filter)
        self.clean(first=True)
        self._try("landlock", self._prepare_rules)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)

    def refusal(self) -> str:
        """Why these layers are not enough; '' if they are. Files need a tree of their own or Landlock, the network seccomp,
        other processes a namespace, another user or Landlock that keeps signals within."""
        if not self._settings["isolated"]:
            return ""
        has = set(self.active)
        lacks = [] if "seccomp" in has else ["seccomp"]
        lacks += [] if has & {"files", "landlock"} else ["landlock or files"]
        others = {"namespaces", "user"} & has or (
            "landlock" in has and landlock.version() >= landlock.SCOPES_SIGNALS
        )
        lacks += [] if others else ["namespaces or user"]
        told = "; ".join(f"{layer}: {reason}" for layer, reason in self.missing.items())
        return f"it lacks {' and '.join(lacks)} ({told})" if lacks else ""

    def _build_tree(self) -> None:
        namespaces.build_tree(self._readable, DEVICES, self._settings["folders"])
        try:
            self._proc = kernel.above_standard(namespaces.processes())
        except OSError:
            self._proc = -1  # a host that hides parts of its /proc shows none: then it is unknown which processes wait for a processor
        namespaces.seal_tree()

    def _open_proc_of_host(self) -> None:
        self._proc = kernel.above_standard(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY))

    def _prepare_filter(self) -> None:
        if problem := seccomp.problem():
            raise OSError(problem)
        self._filter = seccomp.filter_program()

    def _prepare_rules(self) -> None:
        if self._rules >= 0:
            os.close(self._rules)
        self._rules = -1
        rules = landlock.ruleset(self._readable, self._settings["listed"], DEVICES, self.own_folder)
        self._rules = kernel.above_standard(rules)

    # --- for each program -----------------------------------------------------------------------

    def confine(self) -> None:
        """Called in the process of a program."""
        if "cgroup" in self.active:
            self._be_killed_first()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
        os.chdir(self.own_folder)
        os.umask(0o077)
        self._limit()
        if not self._settings["isolated"]:
            return
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if "landlock" in self.active:
            landlock.restrict(self._rules)
        if "user" in self.active:
            os.setgroups([])
            os.setresgid(self._group, self._group, self._group)
            os.setresuid(self._user, self._user, self._user)
            kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)  # a change of the user forgets it
        kernel.drop_capabilities()
        seccomp.install(self._filter)

    def _limit(self) -> None:
        settings = self._settings
        memory, file = settings["memory_mb"] * kernel.MB, settings["file_mb"] * kernel.MB
        limits = [
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_FSIZE, file),
            (resource.RLIMIT_NOFILE, OPEN_FILES),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
        ]
        if settings["isolated"]:  # elsewhere it would count every process of the user
            limits.append((resource.RLIMIT_NPROC, PROCESSES))
        for what, most in limits:
            resource.setrlimit(what, (most, most))

    def _be_killed_first(self) -> None:
        """Make the kernel kill this process before the zygote when memory runs out."""
        if self._proc < 0:
            return
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        file = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=self._proc)
        os.write(file, b"1000")
        os.close(file)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)

    def clean(self, first: bool = False) -> None:
        """Give the next program an empty folder."""
        if not first and not os.listdir(self.own_folder):
            return
        if "files" in self.active:
            namespaces.mount_own_folder(
                self._settings["disk_mb"],
                self._user,
                self._group,
                again=not first,
                executable=self._settings["executable"],
            )
            for path in self._settings["folders"]:
                folder = namespaces.OWN_FOLDER + path
                os.makedirs(folder, 0o700, exist_ok=True)
                os.chown(folder, self._user, self._group)
        else:
            if not first:
                shutil.rmtree(self.own_folder)
            os.mkdir(self.own_folder, 0o700)
            os.chown(self.own_folder, self._user, self._group)
        if "landlock" in self.active:
            self._prepare_rules()

    def cpu_of_all(self) -> float:
        """Processor seconds of all processes of the namespace but the first, with those of their children that have ended;
        0 without such a namespace."""
        if "files" not in self.active or self._proc < 0:
            return 0.0
        ticks = 0
        for name in os.listdir(self._proc):
            if name.isdigit() and name != "1":
                with suppress(FileNotFoundError, ProcessLookupError):
                    file = os.open(f"{name}/stat", os.O_RDONLY, dir_fd=self._proc)
                    with open(file) as stat:
                        ticks += sum(map(int, stat.read().rpartition(")")[2].split()[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def waited(self, pid: int) -> float:
        """Seconds for which the threads of a process could have run and had no processor; where that is unknown, all
        that a program has."""
        if self._proc < 0:
            return float(self._settings["deadline_s"])
        tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        found = 0.0
        try:
            for task in os.listdir(tasks):
                file = os.open(f"{task}/schedstat", os.O_RDONLY, dir_fd=tasks)
                found += int(os.read(file, 100).split()[1]) / 1e9
                os.close(file)
        finally:
            os.close(tasks)
        return found
