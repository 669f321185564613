"""Classes of models, for ``SGLANG_EXTERNAL_MODEL_PACKAGE``."""
