"""Before the start: the plan of a run, its checks, its directory, and what a resumed run needs."""
