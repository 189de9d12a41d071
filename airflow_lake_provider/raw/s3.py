"""Raw files in a bucket, over s3fs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, IncompleteReadError
from s3fs import S3FileSystem
from s3fs.core import S3_RETRYABLE_ERRORS
from s3fs.utils import FileExpired

from airflow_lake_provider.errors import (
    NoSpaceLeft,
    RawFileMissing,
    SettingsError,
    StorageError,
    StorageUnavailable,
)
from airflow_lake_provider.raw.remote import PART, Patience, RemoteFiles, error_code

MAX_PARTS = 10_000

_MISSING = {"404", "NoSuchKey", "NotFound"}
_AWAY = {
    "408", "429", "500", "502", "503", "504",
    "InternalError", "OperationAborted", "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable", "SlowDown",
    "Throttling", "ThrottlingException", "TooManyRequestsException",
}  # fmt: skip
_FULL = {"507", "InsufficientStorage", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"}
_REFUSED = {
    "401", "403", "AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch",
}  # fmt: skip
_UPLOAD = {"create_multipart_upload", "upload_part", "complete_multipart_upload", "abort_multipart_upload"}


class Buckets(RemoteFiles):
    """Reads, writes and removes single objects; keys are used as they stand, without any URL encoding.

    ``options`` are those of s3fs; without them the usual variables and files apply. Removing an object removes all its
    versions where the bucket keeps them. Raises SettingsError where the options cannot be used.
    """

    def __init__(self, options: Mapping[str, Any], *, max_bytes: int | None, retry_seconds: float) -> None:
        super().__init__(
            lambda: _connected(options, retry_seconds),
            # The largest file has to fit into the number of parts that a server takes.
            part=max(PART, -(-(max_bytes or 0) // (MAX_PARTS - 1))),
            retry_seconds=retry_seconds,
            is_outage=_is_outage,
            translated=_translated,
        )
        self._system()


class _WholeKeys(S3FileSystem):  # type: ignore[misc]
    """The file system of s3fs with keys that are nothing but keys, and with this package's patience."""

    cachable = False  # nobody else is to get this one, nor is its secret to be kept for longer than it is used
    retries = 1

    def __init__(self, *, retry_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._retry_seconds = retry_seconds

    def split_path(self, path: str) -> tuple[str, str, None]:
        """Bucket and key; what looks like a version at the end of a key belongs to it."""
        bucket, key = self._find_bucket_key(self._strip_protocol(path))
        return bucket, key, None

    async def _call_s3(self, method: str, *arguments: Any, **more: Any) -> Any:
        """One request; those of an upload in parts are repeated while the storage is away.

        An error inside of an upload ends it, so it can only be repeated here; all other things are repeated as a whole.
        """
        patience = Patience(self._retry_seconds if method in _UPLOAD else 0)
        while True:
            try:
                return await super()._call_s3(method, *arguments, **more)
            except Exception as error:
                pause = patience.pause() if _is_outage(error) else None
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    def call_s3(self, method: str, *arguments: Any, **more: Any) -> Any:
        """One request from outside of the event loop; it ends with the caller's interest in it.

        A part that is still on its way when its upload is given up would be kept by the server, belonging to nothing.
        """
        given_up, ended = threading.Event(), threading.Event()
        tasks: list[asyncio.Task[Any] | None] = []

        async def request() -> Any:
            tasks.append(asyncio.current_task())
            try:
                return None if given_up.is_set() else await self._call_s3(method, *arguments, **more)
            finally:
                ended.set()

        def cancel() -> None:
            for task in tasks:
                if task is not None:
                    task.cancel()

        try:
            return asyncio.run_coroutine_threadsafe(request(), self.loop).result()
        except BaseException:
            # A signal may have been raised at any point of the line above, even before there is a future to be had.
            if not ended.is_set():
                given_up.set()
                self.loop.call_soon_threadsafe(cancel)
                ended.wait(5)
            raise

    async def _rm_file(self, path: str, **more: Any) -> None:
        bucket, key, _ = self.split_path(path)
        answer = await self._call_s3("delete_object", Bucket=bucket, Key=key)
        if answer.get("DeleteMarker") or answer.get("VersionId"):
            versions = [
                each["VersionId"]
                async for page in self._list_pages("list_object_versions", Bucket=bucket, Prefix=key)
                for each in (*page.get("Versions", ()), *page.get("DeleteMarkers", ()))
                if each["Key"] == key
            ]
            for version in versions:
                await self._call_s3("delete_object", Bucket=bucket, Key=key, VersionId=version)


def _connected(options: Mapping[str, Any], retry_seconds: float) -> _WholeKeys:
    config = {"connect_timeout": 5, "read_timeout": 30, "retries": {"mode": "standard", "total_max_attempts": 1}}
    try:
        system = _WholeKeys(
            **{**options, "config_kwargs": {**config, **options.get("config_kwargs", {})}},
            # Of these s3fs would take others, with which it could not be used here.
            retry_seconds=retry_seconds,
            asynchronous=False,
            use_listings_cache=False,
            version_aware=False,
        )
        system.connect()
    except Exception as error:
        # Its text may hold an address with credentials, so only its name is told.
        raise SettingsError(
            f"LAKE_RAW_OPTIONS or the AWS_… variables cannot be used ({type(error).__name__}): see that the options "
            "are some that s3fs has, that the endpoint is an address and the region is set."
        ) from None
    return system


def _is_outage(error: Exception) -> bool:
    code = error_code(error)
    if code or isinstance(error, FileNotFoundError | PermissionError | FileExpired):
        return code in _AWAY
    return isinstance(error, (*S3_RETRYABLE_ERRORS, ConnectionError, IncompleteReadError, OSError))


def _translated(error: Exception, uri: str, verb: str) -> Exception:
    code = error_code(error)
    if code in _MISSING or (not code and isinstance(error, FileNotFoundError)):
        return RawFileMissing(
            f"The uploaded file {uri!r} is gone from raw storage: upload it again, or put it back from a backup."
        )
    if code in _FULL:
        return NoSpaceLeft(f"{uri!r} could not be {verb}, the storage is full ({code}): free some space.")
    if code in _REFUSED:
        return StorageError(
            f"{uri!r} could not be {verb}, the storage refuses the credentials or the right to it ({code}): "
            "see LAKE_RAW_OPTIONS or the AWS_… variables."
        )
    if code == "NoSuchBucket":
        return StorageError(f"{uri!r} could not be {verb}, there is no such bucket: create it, or correct LAKE_RAW.")
    if code in ("PreconditionFailed", "412") or isinstance(error, FileExpired):
        return StorageUnavailable(f"{uri!r} was replaced while it was {verb}: try again.")
    if isinstance(error, BotoCoreError | ClientError | OSError):
        return StorageError(
            f"{uri!r} could not be {verb} ({code or type(error).__name__}): see LAKE_RAW, LAKE_RAW_OPTIONS and the "
            "AWS_… variables."
        )
    return error
