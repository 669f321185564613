"""A store of fsspec, with one error for whatever its backend raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import fsspec  # type: ignore[import-untyped]

from astraflow_core.errors import UserError


class StoreError(Exception):
    """The store refused or failed; the text has its reply."""


class ObjectStore:
    """Objects below ``url``, by names relative to it."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        local = "://" not in url or url.startswith(("file://", "local://"))
        defaults = {"auto_mkdir": True} if local else {"use_listings_cache": False}
        try:
            self._fs, root = fsspec.core.url_to_fs(url, **defaults, **options)
        except (ImportError, ValueError) as error:
            raise UserError(
                f"transport 'disk' cannot open {url!r}: {error}; install the package that fsspec names "
                "(s3fs for s3://), or give a path"
            ) from error
        self._root = str(root).rstrip("/")
        self._local = local

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Put an object whole, or not at all."""
        path = f"{self._root}/{name}"
        target = f"{path}.{uuid4().hex}.part" if self._local else path
        try:
            self._fs.pipe_file(target, bytes(data))
            if self._local:
                self._fs.mv(target, path)
        except Exception as error:
            if self._local:
                self.remove(target.removeprefix(f"{self._root}/"))
            raise StoreError(f"{path} cannot be written: {_error_text(error)}") from error

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes | None:
        """An object, or a part of it; ``None`` if there is none."""
        path = f"{self._root}/{name}"
        try:
            data: bytes = self._fs.cat_file(path, start=start, end=end)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise StoreError(f"{path} cannot be read: {_error_text(error)}") from error
        return data

    def names(self, folder: str) -> list[str]:
        """Objects below ``folder``, by their last parts."""
        try:
            self._fs.invalidate_cache()
            found = self._fs.find(f"{self._root}/{folder}")
        except FileNotFoundError:
            return []
        except Exception as error:
            raise StoreError(
                f"{self._root}/{folder} cannot be listed: {_error_text(error)}"
            ) from error
        return [str(path).rpartition("/")[2] for path in found]

    def remove(self, name: str) -> None:
        """Remove an object, or all below a folder; a missing one is not an error."""
        path = f"{self._root}/{name}".rstrip("/")
        try:
            self._fs.rm(path, recursive=True)
        except FileNotFoundError:
            return
        except Exception as error:
            raise StoreError(f"{path} cannot be removed: {_error_text(error)}") from error


def _error_text(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
