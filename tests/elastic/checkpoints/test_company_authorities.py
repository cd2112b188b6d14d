"""Checkpoints in an object store whose certificate a company's authority has signed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.object_stores import object_store
from harness.processes import REPOSITORY
from shared_pathways_service.testing.google import FakeGoogle
from tests.kube.background import background
from tests.kube.certificates import Authority
from tests.kube.recording_server import server_context
from tests.kube.relay import tls_before

#: Uses a store in each way that a checkpoint does: gcsfs, and TensorStore, by which Orbax writes.
#: (aiohttp reads the variables when it is imported.)
CHILD = """
import json, os
from shared_pathways_service.elastic.checkpoints.file_store import Store
try:
    store = Store("gs://bucket/run")
    store.write_text("manifest", "text")
    # (The stand-in knows only the assertions of google-auth.)
    del os.environ["GOOGLE_APPLICATION_CREDENTIALS"]
    import tensorstore
    spec = {"driver": "gcs", "bucket": "bucket", "path": "run/"}
    files = tensorstore.KvStore.open(spec).result()
    files.write("array", b"array").result()
    told = [store.read_text("manifest"), store.read_text("array")]
except Exception as error:
    told = [str(error), *getattr(error, "__notes__", ())]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """What leads to a store and to Google's tokens, both behind TLS; BUNDLE is the authority."""
    directory = tmp_path_factory.mktemp("company")
    # (With key identifiers, which these libraries require from Python 3.13 on.)
    authority = Authority("corp", is_strict=True)
    (directory / "bundle.pem").write_text(authority.certificate)
    context = server_context(authority.issue("google", hosts=["127.0.0.1"]))
    with (
        background() as servers,
        object_store("gs") as plain,
        FakeGoogle(tls=context) as google,
    ):
        port = int(plain["STORAGE_EMULATOR_HOST"].rpartition(":")[2])
        url = f"https://127.0.0.1:{servers.enter(tls_before(port, context))}"
        google.write_credentials(directory / "credentials.json")
        unwanted = ("SSL_CERT_", "REQUESTS_", "CURL_", "TENSORSTORE_")
        yield {
            **{name: text for name, text in os.environ.items() if not name.startswith(unwanted)},
            **{name: text for name, text in plain.items() if name != "FSSPEC_GCS_TOKEN"},
            "STORAGE_EMULATOR_HOST": url,
            "TENSORSTORE_GCS_HTTP_URL": url,
            "GOOGLE_APPLICATION_CREDENTIALS": str(directory / "credentials.json"),
            # (The project of the credentials.)
            "GOOGLE_CLOUD_PROJECT": "fake-project",
            "BUNDLE": str(directory / "bundle.pem"),
        }


def told(variables: Mapping[str, str], *names: str) -> list[str]:
    """Returns what a program says that has the authority in these variables."""
    named = dict.fromkeys(names, variables["BUNDLE"])
    ended = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**variables, **named},
        cwd=Path(REPOSITORY),
        capture_output=True,
        text=True,
        timeout=deadline(180.0),
        check=True,
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    assert isinstance(found, list)
    return found


def test_the_variables_that_the_documentation_names_are_enough(
    variables: Mapping[str, str],
) -> None:
    assert told(variables, "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") == ["text", "array"]


@pytest.mark.parametrize("only", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_the_error_names_the_variables(variables: Mapping[str, str], only: str) -> None:
    message, *notes = told(variables, only)
    assert "CERTIFICATE_VERIFY_FAILED" in message
    assert len(notes) == 1
    assert "SSL_CERT_FILE" in notes[0]
    assert "REQUESTS_CA_BUNDLE" in notes[0]
