"""Pages in a browser about the runs of a folder, and the command that serves them."""
