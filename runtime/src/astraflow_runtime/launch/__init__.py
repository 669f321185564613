"""Starting a run: its plan, its processes, and what a person sees of it."""
