"""Frozen sides of comparisons, written here: what a public system's algorithm does, or the least that a
service could do. Each module names what it reimplements. They are never tuned together with ours."""
