"""The files of a model: layout, digest and the limits that its configuration states."""
