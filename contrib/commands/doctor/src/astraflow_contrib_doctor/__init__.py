"""The command ``astraflow doctor``: findings on a machine, its plugins and a run, with a short real start of the run."""
