"""Object stores of this machine, with one bucket; as a script, one of them as a process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from harness.processes import DEADLINE_S, REPOSITORY

BUCKET = "bucket"


def environment_of(store: str, port: int) -> Mapping[str, str]:
    """Returns what leads fsspec, TensorStore and botocore to a store."""
    url = f"http://127.0.0.1:{port}"
    if store == "s3":
        return {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    return {
        "STORAGE_EMULATOR_HOST": url,
        "TENSORSTORE_GCS_HTTP_URL": url,
        "FSSPEC_GCS_TOKEN": "anon",
        "GOOGLE_CLOUD_PROJECT": "any",
        # Would ask for the bucket's kind by gRPC, which the emulator does not speak.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


@contextlib.contextmanager
def object_store(store: str) -> Iterator[Mapping[str, str]]:
    """Runs a store, ``gs`` or ``s3``; gives the variables that lead to it."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__, store],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPOSITORY,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield environment_of(store, int(process.stdout.readline()))
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0


def _google() -> tuple[Any, int]:
    from gcp_storage_emulator.handlers import objects

    download = objects.download

    def with_generation(request: Any, response: Any, storage: Any, *rest: Any, **more: Any) -> None:
        """TensorStore needs this header, which the real one sends."""
        download(request, response, storage, *rest, **more)
        if response.status in (200, 206):
            names = request.params["bucket_name"], request.params["object_id"]
            response["x-goog-generation"] = storage.get_file_obj(*names)["generation"]

    objects.download = with_generation
    from gcp_storage_emulator import server

    emulator = server.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    emulator.start()
    return emulator, emulator._api._httpd.server_address[1]


def _amazon() -> tuple[Any, int]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    port = server.get_host_and_port()[1]
    os.environ.update(environment_of("s3", port))
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    return server, port


if __name__ == "__main__":
    running, number = {"gs": _google, "s3": _amazon}[sys.argv[1]]()
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()
    sys.stdin.read()  # its end is the sign to stop
    running.stop()
