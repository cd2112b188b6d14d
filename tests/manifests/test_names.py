from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.manifests import names

VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@given(st.text(max_size=200))
def test_whatever_a_user_is_called_the_label_is_valid(text: str) -> None:
    assert VALUE.fullmatch(names.label_value(text))


def test_what_is_valid_stays_as_it_is() -> None:
    assert names.label_value("Ada.Lovelace_1") == "Ada.Lovelace_1"
    assert names.label_value("ada@example.com") == "ada-example.com"


def test_only_an_object_of_the_session_bears_it() -> None:
    mine = {"metadata": {"labels": {names.LABEL_SESSION: "s1"}}}
    assert names.bears_session(mine, "s1")
    assert not names.bears_session(mine, "s2")
    unlabelled: dict[str, Any] = {"metadata": {"labels": {names.LABEL_SESSION: ""}}}
    others: list[dict[str, Any]] = [{}, {"metadata": {}}, unlabelled]
    for other in others:
        assert not names.bears_session(other, "")
        assert not names.bears_session(other, "s1")


def test_a_holder_reads_as_the_resource_manager_would_write_it() -> None:
    job = {
        "metadata": {
            "name": "isc-proxy-ada-x",
            "labels": {names.LABEL_USER: "ada", names.LABEL_SERVICE: "pw"},
            "annotations": {
                names.ANNOTATION_HOST: "laptop",
                names.ANNOTATION_INSTANCES: "tpuv6e:2x2=2,tpuv5e:2x2=1",
            },
        }
    }
    holder = names.holder_of(job)
    assert str(holder) == "ada@laptop: 2 x tpuv6e:2x2, 1 x tpuv5e:2x2"
    assert holder.service == "pw"


def test_a_job_that_is_not_ours_is_a_holder_by_its_name() -> None:
    assert str(names.holder_of({"metadata": {"name": "isc-proxy-bob-1"}})) == "isc-proxy-bob-1"


def test_jobs_of_workers_are_recognised() -> None:
    known = ("worker", "pathways-worker", "worker-tpuv5e-2x2", "pathways-head", "workers", "main")
    assert [names.is_worker_job(name) for name in known] == [True, True, True, False, False, False]


def test_instances_are_counted_in_the_order_given() -> None:
    assert names.instances_text(["b", "a", "b"]) == "b=2,a=1"
    assert names.instances_text([]) == ""
