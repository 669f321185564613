"""Names that our process and vLLM's workers both use."""

from __future__ import annotations

BACKEND = "astraflow_file"
"""The weight-transfer backend of :mod:`astraflow_plugin_vllm.transfer`."""

EXTENSION = "astraflow_plugin_vllm.transfer.WorkerExtension"
"""What makes each worker import it."""
