import os
import socket

from astraflow_core import hookimpl


@hookimpl
def astraflow_run_started(run):
    with (run.directory / "processes.txt").open("a") as file:
        print(socket.gethostname(), os.getpid(), file=file)
