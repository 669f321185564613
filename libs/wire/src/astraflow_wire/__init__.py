"""What passes between the processes of a run, and what each of them does for itself."""
