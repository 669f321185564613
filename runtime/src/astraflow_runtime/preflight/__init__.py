"""The end of the numerical preflight that runs where the trainer runs: an interpreter of its own has this distribution, and
perhaps not that of the doctor, which asks."""
