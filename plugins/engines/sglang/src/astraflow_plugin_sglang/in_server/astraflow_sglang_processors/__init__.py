"""Classes that prepare images, for ``SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE``."""
