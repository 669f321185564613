"""Names that our process and vLLM's workers both use."""

from __future__ import annotations

BACKEND = "astraflow_file"
"""The weight-transfer backend of :mod:`astraflow_plugin_vllm.workers.transfer`."""

EXTENSION = "astraflow_plugin_vllm.workers.transfer.WorkerExtension"
"""What makes each worker import it."""
