"""What `make site` does: the pages as a site, checked."""
