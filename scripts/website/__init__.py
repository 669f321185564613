"""The steps of `make site`: build the pages as a site, and check it."""
