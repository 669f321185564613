"""Programs that try what the sandbox is to prevent. Each raises where it is held back; ``SECRET``, ``HOST`` and ``PORT`` are
filled in with a file, a process and a listener of the host."""

from __future__ import annotations

from collections.abc import Mapping

CALL = """
import ctypes, os
def call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
"""

FILES: Mapping[str, str] = {
    "read_shadow": "open('/etc/shadow').read()",
    "read_secret": "open('SECRET').read()",
    "read_by_dots": "open('/usr/../' + 'SECRET').read()",
    "read_by_symlink": "import os; os.symlink('SECRET', 'link'); open('link').read()",
    "read_by_hard_link": "import os; os.link('SECRET', 'link'); open('link').read()",
    "write_beside": "open('SECRET.new', 'w')",
    "write_over": "open('SECRET', 'w')",
    "remove": "import os; os.remove('SECRET')",
    "write_usr": "open('/usr/escaped', 'w')",
    "write_library": "import json; open(json.__file__, 'a')",
    "read_environment": "open('/proc/self/environ').read()",
    "read_kernel_log": "open('/dev/kmsg').read(1)",
    "read_sys": "open('/sys/kernel/uevent_seqnum').read()",
    "write_cgroup": "open('/sys/fs/cgroup/memory/memory.limit_in_bytes', 'w').write('-1')",
    "make_device": "import os; os.mknod('disk', 0o60600, os.makedev(8, 0)); open('disk', 'rb').read(1)",
    "leave_by_chroot": "import os; os.mkdir('x'); os.chroot('x'); os.chdir('../../..'); open('SECRET').read()",
    "run_program_of_host": "import subprocess; subprocess.run(['SECRET.sh'], check=True)",
    "list_home": "import os; os.listdir(os.path.dirname('SECRET'))",
}

NETWORK: Mapping[str, str] = {
    "connect": "import socket; socket.create_connection(('127.0.0.1', PORT), 5)",
    "connect_out": "import socket; socket.create_connection(('1.1.1.1', 53), 5)",
    "listen": "import socket; socket.create_server(('127.0.0.1', 0))",
    "datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "raw": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "unix": "import socket; socket.socket(socket.AF_UNIX).connect('SECRET.socket')",
    "abstract_unix": "import socket; socket.socket(socket.AF_UNIX).bind('\\0escaped')",
    "vsock": "import socket; socket.socket(socket.AF_VSOCK).connect((2, PORT))",
    "inet_pair": "import socket; socket.socketpair(socket.AF_INET)",
    "name": "import socket; socket.getaddrinfo('example.org', 80)",
}

PROCESSES: Mapping[str, str] = {
    "signal_host": "import os; os.kill(HOST, 9)",
    "signal_zygote": "import os, time; os.kill(os.getppid(), 9); time.sleep(0.2); os.kill(os.getppid(), 9); "
    "assert os.getppid() > 1",
    "stop_zygote": "import os, signal; os.kill(os.getppid(), signal.SIGSTOP); assert os.getppid() > 1",
    "limit_zygote": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
    "slow_zygote": "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "pin_zygote": "import os; os.sched_setaffinity(os.getppid(), {0})",
    "memory_of_zygote": "import os; open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "files_of_zygote": "import os; os.listdir(f'/proc/{os.getppid()}/fd')",
    "memory_of_host": "open('/proc/HOST/mem', 'rb').read(1)",
    "see_host": "import os; os.listdir('/proc/HOST')",
    "become_root": "import os; os.setresuid(0, 0, 0)",
    "raise_limit": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))",
    "set_clock": "import time; time.clock_settime(time.CLOCK_REALTIME, time.time() + 60)",
    "set_host_name": "import socket; socket.sethostname('escaped')",
    "shared_memory": "from multiprocessing.shared_memory import SharedMemory; SharedMemory('left', True, 64)",
}

CALLS = (
    "ptrace", "process_vm_readv", "pidfd_getfd", "unshare", "setns", "mount", "pivot_root", "fsopen", "keyctl", "add_key",
    "bpf", "userfaultfd", "perf_event_open", "io_uring_setup", "open_by_handle_at", "kexec_load", "init_module", "shmget",
    "semget", "msgget", "mq_open", "reboot", "memfd_secret", "personality", "adjtimex", "seccomp",
)  # fmt: skip
"""System calls that are refused whatever their arguments."""

PAIRS: Mapping[str, tuple[str, str]] = {
    "file": ("open('left', 'w').write('x')", "import os; print(os.listdir('.'))"),
    "folders": (
        "import os\nfor n in range(300): os.mkdir('d'); os.chdir('d')",
        "import os; print(os.listdir('.'))",
    ),
    "unreadable": (
        "import os; os.mkdir('d'); open('d/f', 'w').close(); os.chmod('d', 0)",
        "import os; print(os.listdir('.'))",
    ),
    "module": (
        "import json; json.left = 1",
        "import json; print([n for n in dir(json) if n == 'left'])",
    ),
    "builtins": ("import builtins; builtins.print = None", "print([])"),
    "environment": (
        "import os; os.environ['LEFT'] = '1'",
        "import os; print([k for k in os.environ if k == 'LEFT'])",
    ),
    "import_path": (
        "import sys; sys.path.insert(0, '/tmp')",
        "import sys; print([p for p in sys.path if p == '/tmp'])",
    ),
    "main_module": ("left = 1", "print([name for name in globals() if name == 'left'])"),
    "daemon": (
        "import os, time\nif not os.fork():\n    os.setsid()\n    if not os.fork():\n        time.sleep(60)",
        "import os\ntry:\n    os.kill(-1, 0)\n    print('all')\nexcept (ProcessLookupError, PermissionError):\n    print([])",
    ),
    "standard_input": ("pass", "import sys; print(sys.stdin.readlines())"),
}
"""What a program leaves, and a program that prints [] if it does not find it."""
