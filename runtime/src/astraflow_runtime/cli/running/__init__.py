"""Commands that ask a running run, or change it."""
