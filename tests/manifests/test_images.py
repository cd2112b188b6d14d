from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.errors import InvalidRequestError, VersionSkew
from shared_pathways_service.manifests.image_names import (
    Image,
    Versions,
    check_skew,
    is_ours,
    proxy_image_for,
    python_skew,
)

GOOGLE = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways"
DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("server", Image(repository="server")),
        ("a/server:x", Image(repository="a/server", tag="x")),
        ("host:5000/a/b", Image(repository="host:5000/a/b")),
        ("host:5000/a/b:1.0", Image(repository="host:5000/a/b", tag="1.0")),
        (f"a/b@{DIGEST}", Image(repository="a/b", digest=DIGEST)),
        (f"a:1/b:2@{DIGEST}", Image(repository="a:1/b", tag="2", digest=DIGEST)),
    ],
)
def test_a_name_is_taken_apart_and_put_together(text: str, image: Image) -> None:
    assert Image.parse(text) == image
    assert str(image) == text


@pytest.mark.parametrize("text", ["", "a b", "a/:x", "a/b:c:d", "a@sha256:0", None, 5])
def test_what_is_no_image_is_refused(text: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Image.parse(text, field="proxy_server_image")
    assert caught.value.field == "proxy_server_image"


@pytest.mark.parametrize(
    ("image", "ours"),
    [
        ("r.io/x/shared-pathways-service/server:0.1.0", True),
        ("r.io/x/shared-pathways-service/proxy_server:0.1.0", True),
        ("shared-pathways-service/server", True),
        (f"shared-pathways-service/server@{DIGEST}", True),
        (f"{GOOGLE}/server:latest", False),
        (f"{GOOGLE}/proxy_server:latest", False),
        ("r.io/shared-pathways-service/other:1", False),
        ("r.io/not-shared-pathways-service/server:1", False),
        ("r.io/shared-pathways-service:1/server", False),
    ],
)
def test_whose_an_image_is(image: str, ours: bool) -> None:
    assert is_ours(image) is ours


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        (f"{GOOGLE}/server:latest", f"{GOOGLE}/proxy_server:latest"),
        (f"{GOOGLE}/server", f"{GOOGLE}/proxy_server"),
        (
            "h:5000/shared-pathways-service/server:1",
            "h:5000/shared-pathways-service/proxy_server:1",
        ),
        ("server:1", "proxy_server:1"),
        # The digest is the server's alone.
        (f"a/server:1@{DIGEST}", "a/proxy_server:1"),
    ],
)
def test_the_proxys_image_goes_with_the_servers(server: str, proxy: str) -> None:
    assert proxy_image_for(server) == proxy


@pytest.mark.parametrize("server", [f"a/server@{DIGEST}", "a/unsanitized_server:1"])
def test_where_the_proxys_image_does_not_follow_the_user_is_asked(server: str) -> None:
    with pytest.raises(InvalidRequestError, match="proxy_server_image") as caught:
        proxy_image_for(server)
    assert server in caught.value.expected


@pytest.mark.parametrize(
    ("tag", "versions"),
    [
        ("jax-0.9.0", Versions(jax="0.9.0")),
        ("jax-0.10.0", Versions(jax="0.10.0")),
        ("20260101-python_3.12-jax_0.9.0", Versions(jax="0.9.0", python="3.12")),
        ("20260101-jax_0.9.0-python_3.12", Versions(jax="0.9.0", python="3.12")),
        ("py312-jax0.9.1", Versions(jax="0.9.1", python="3.12")),
        ("cp311-jaxlib-0.9", Versions(jax="0.9", python="3.11")),
        ("Python-3.13_JAX-0.9.2", Versions(jax="0.9.2", python="3.13")),
        ("latest", Versions()),
        ("20251208", Versions()),
        ("notjax-1.2", Versions()),
        ("jax", Versions()),
        ("numpy-2.0", Versions()),
    ],
)
def test_versions_in_a_tag(tag: str, versions: Versions) -> None:
    assert Image.parse(f"r.io/x/colocated-python:{tag}").versions == versions


@given(st.text(st.sampled_from("jaxlibpython-_.0123456789vV"), max_size=40))
def test_any_tag_can_be_looked_at(tag: str) -> None:
    found = Image(repository="a", tag=tag).versions
    assert not found.python or "." in found.python


@pytest.mark.parametrize(
    ("client", "tag", "warned"),
    [
        ("0.9.0", "jax-0.9.0", False),
        ("0.9.0.dev20260101", "jax-0.9.3", False),
        ("0.9.2", "jax-0.10.2", False),
        ("0.10.2", "jax-0.12.0.1", False),
        ("0.9.2", "jax-0.8.1", True),
        ("0.10.2", "latest", False),
        ("", "jax-0.9.0", False),
    ],
)
def test_a_release_of_jax_that_was_not_tried_is_worth_a_warning(
    client: str, tag: str, warned: bool
) -> None:
    warning = check_skew(Versions(jax=client), f"{GOOGLE}/server:{tag}")
    assert bool(warning) is warned
    if warned:
        assert client in warning
        assert "0.8.1" in warning


def test_a_release_without_a_common_version_is_refused() -> None:
    with pytest.raises(VersionSkew, match=f"in {GOOGLE}/server:jax-0.9.2 cannot work") as caught:
        check_skew(Versions(jax="0.12.0.1"), f"{GOOGLE}/server:jax-0.9.2")
    assert "jax==0.9.2" in caught.value.hint


def test_another_major_version_of_jax_is_refused() -> None:
    with pytest.raises(VersionSkew) as caught:
        check_skew(Versions(jax="1.0.0"), f"{GOOGLE}/server:jax-0.9.0")
    assert (caught.value.client, caught.value.service) == ("1.0.0", "0.9.0")
    assert "jax==0.9.0" in caught.value.hint


SIDECAR = "r.io/x/colocated-python:20260101-python_3.12-jax_0.10.2"


def test_a_sidecar_of_the_same_versions_is_fine() -> None:
    assert python_skew(Versions(jax="0.10.2", python="3.12.4"), SIDECAR, "sidecar") == ""


def test_a_sidecar_with_another_python_is_refused() -> None:
    with pytest.raises(VersionSkew) as caught:
        python_skew(Versions(jax="0.10.2", python="3.11.7"), SIDECAR, "sidecar")
    assert (caught.value.client, caught.value.service) == ("3.11.7", "3.12")


def test_a_sidecar_with_another_jax_is_warned_of() -> None:
    assert "0.10.2" in python_skew(Versions(jax="0.11.0", python="3.12.1"), SIDECAR, "sidecar")


def test_a_sidecar_of_unknown_version_gets_a_warning() -> None:
    assert "does not name" in python_skew(
        Versions(jax="0.10.2", python="3.12"), "r.io/x/s:latest", "sidecar"
    )
