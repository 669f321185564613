"""The steps of `make release`, one module each."""
