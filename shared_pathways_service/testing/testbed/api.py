"""A small blocking client of the API server, for tests and for the testbed's handle.

Not the product's client (`kube`): its tests must not rely on it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from shared_pathways_service.kube.tls import client_tls
from shared_pathways_service.testing.testbed.errors import ApiRefused, TestbedError

__all__ = ["WAIT_S", "Api", "Object"]

#: A Kubernetes object, as JSON.
Object = dict[str, Any]
#: The default timeout in seconds: generous, for a busy machine.
WAIT_S = 90.0
_REQUEST_S = 30.0
_MERGE_PATCH = "application/merge-patch+json"

T = TypeVar("T")


class Api:
    """The API server as one user sees it; keeps no connection open.

    Args:
      server: e.g. ``https://127.0.0.1:6443``.
      authority: The file with the certificate to trust.
      token: The user's.
    """

    def __init__(self, server: str, authority: Path, token: str) -> None:
        self._address = urlsplit(server).netloc
        self._tls = client_tls(authority=authority.read_text())
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Sends a request and returns the object in the answer.

        Raises:
          ApiRefused: The answer is an error, or there is no answer.
        """
        typed = None if body is None else (content_type, json.dumps(body))
        with self._answer(method, path, params, typed) as answer:
            data: Object = json.loads(answer.read())
            return data

    def get(self, path: str, **params: str) -> Object:
        """Returns an object or a list."""
        return self.request("GET", path, params=params)

    def items(self, path: str, **params: str) -> list[Object]:
        """Returns the objects of a list."""
        found: list[Object] = self.get(path, **params)["items"]
        return found

    def text(self, path: str, **params: str) -> str:
        """Returns text, e.g. a pod's log."""
        with self._answer("GET", path, params) as answer:
            return answer.read().decode(errors="replace")

    def lines(self, path: str, *, timeout_s: float, **params: str) -> Iterator[str]:
        """Yields the lines of an answer as they arrive, until its end or the timeout."""
        deadline = time.monotonic() + timeout_s
        with (
            contextlib.suppress(TimeoutError, http.client.HTTPException, ConnectionError),
            self._answer("GET", path, params, timeout_s=timeout_s) as answer,
        ):
            while time.monotonic() < deadline and (line := answer.readline()):
                yield line.decode(errors="replace").rstrip("\n")

    def create(self, path: str, body: Mapping[str, Any]) -> Object:
        """Creates an object."""
        return self.request("POST", path, body=body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Object:
        """Changes fields of an object (a merge patch)."""
        return self.request("PATCH", path, body=body, content_type=_MERGE_PATCH)

    def delete(self, path: str, **options: Any) -> Object:
        """Deletes an object, with fields of DeleteOptions (by default: in the background)."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        return self.request("DELETE", path, body={**body, **options})

    def exists(self, path: str) -> bool:
        """Whether there is such an object."""
        try:
            self.get(path)
        except ApiRefused as error:
            if error.status == http.client.NOT_FOUND:
                return False
            raise
        return True

    def wait_until(
        self,
        path: str,
        condition: Callable[[Sequence[Object]], T | None],
        *,
        what: str,
        timeout_s: float = WAIT_S,
        **params: str,
    ) -> T:
        """Follows a list until a condition returns a true value, and returns that value.

        Args:
          path: Of a list, e.g. ``/api/v1/namespaces/default/pods``.
          condition: Called with the objects of the list, at the beginning and after each change.
          what: Describes the condition, for the error.
          timeout_s: Seconds.
          **params: e.g. a labelSelector.

        Raises:
          TestbedError: The condition did not hold in time; the error shows the objects' states.
        """
        deadline = time.monotonic() + timeout_s
        objects: dict[str, Object] = {}
        for objects in self._versions(path, params, deadline):
            if result := condition(list(objects.values())):
                return result
        seen = "\n".join(
            f"  {o['metadata']['name']}: {json.dumps(o.get('status', {}))}"
            for o in objects.values()
        )
        raise TestbedError(f"no {what} within {timeout_s:.0f} s; there were:\n{seen or '  none'}")

    def _versions(
        self, path: str, params: Mapping[str, str], deadline: float
    ) -> Iterator[dict[str, Object]]:
        """Yields the objects of a list by uid, after each change, until a deadline."""
        while (left := deadline - time.monotonic()) > 0:
            # When a watch ends or its version has expired, list again.
            listed = self.get(path, **params)
            objects = {item["metadata"]["uid"]: item for item in listed["items"]}
            yield objects
            version = listed["metadata"]["resourceVersion"]
            for event in self._watch(path, {**params, "resourceVersion": version}, left):
                item = event["object"]
                if event["type"] == "ERROR":
                    break
                if event["type"] == "DELETED":
                    objects.pop(item["metadata"]["uid"], None)
                else:
                    objects[item["metadata"]["uid"]] = item
                yield objects

    def _watch(
        self, path: str, params: Mapping[str, str], timeout_s: float
    ) -> Iterator[dict[str, Any]]:
        until = {"watch": "true", "timeoutSeconds": str(max(1, int(timeout_s)))}
        # The next list finds out whether the server is back.
        with (
            contextlib.suppress(TimeoutError, http.client.HTTPException, ConnectionError),
            self._answer("GET", path, {**params, **until}, timeout_s=timeout_s + 1) as answer,
        ):
            while line := answer.readline():
                yield json.loads(line)

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: tuple[str, str] | None = None,
        *,
        timeout_s: float = _REQUEST_S,
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection(
            self._address, timeout=timeout_s, context=self._tls
        )
        url = f"{path}?{urlencode(params)}" if params else path
        content_type, data = body or ("", None)
        headers = self._headers | ({"Content-Type": content_type} if body else {})
        with contextlib.closing(connection):
            try:
                connection.request(method, url, data, headers)
                answer = connection.getresponse()
            except OSError as error:
                what = f"{method} {path}"
                raise ApiRefused(what, status=0, reason="Unreachable", text=str(error)) from error
            if answer.status >= http.client.BAD_REQUEST:
                raise ApiRefused.of_answer(
                    f"{method} {path}", answer.status, _parsed(answer.read())
                )
            yield answer


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
