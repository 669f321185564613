"""The local launcher: processes of a run as subprocesses on this host."""
