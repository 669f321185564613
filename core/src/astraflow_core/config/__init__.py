"""Configuration: TOML with ``extends`` and overrides, validated by frozen pydantic models."""
