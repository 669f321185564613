"""One engine with a base model for the adapters of several runs, and an engine that is a part of one."""
