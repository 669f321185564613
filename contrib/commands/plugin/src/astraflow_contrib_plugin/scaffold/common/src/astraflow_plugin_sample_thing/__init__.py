"""The sample kind ``sample_thing``."""
