from __future__ import annotations

from typing import Any

import pytest

from shared_pathways_service.cluster_state.claims import claims_to_check, find_shortage, read_claims
from tests.cluster_state.claiming_proxies import V5, V6, proxy, service
from tests.cluster_state.objects import Object


def shortage_of(name: str, pods: list[Object], *, slices: int = 3) -> Any:
    claims = read_claims(service(slices), pods)
    return find_shortage(service(slices), name, claims)


def test_a_proxy_that_started_earlier_holds_its_slices() -> None:
    pods = [proxy("eve", V6, V6, at="02"), proxy("ada", V6, V6, at="01")]
    short = shortage_of("eve", pods)
    assert (short.wanted, short.free) == ({V6: 2}, {V6: 1})
    assert short.holders == (f"ada@laptop: 2 x {V6}",)
    assert short.reason == f"other connections hold 2 of 3 {V6} slices (2 wanted)"
    assert shortage_of("ada", pods) is None, "it came first"


def test_of_two_that_start_together_one_is_behind() -> None:
    pods = [proxy("eve", V6, V6), proxy("ada", V6, V6)]
    behind = [name for name in ("ada", "eve") if shortage_of(name, pods)]
    assert behind == ["eve"]


def test_a_proxy_that_only_waits_holds_no_slices() -> None:
    pods = [proxy("cy", V6, at="01"), proxy("ada", V6, V6, at="02"), proxy("bob", V6, at="03")]
    assert shortage_of("ada", pods, slices=2).holders == (f"cy@laptop: 1 x {V6}",)
    assert shortage_of("bob", pods, slices=2) is None, "one is free"
    short = shortage_of("eve", [*pods, proxy("eve", V6, at="04")], slices=2)
    assert (short.wanted, short.free) == ({V6: 1}, {V6: 0})
    assert short.holders == (f"cy@laptop: 1 x {V6}", f"bob@laptop: 1 x {V6}")
    assert short.waiting == (f"ada@laptop: 2 x {V6}",)
    assert short.reason == (
        f"other connections hold 2 of 2 {V6} slices (1 wanted); "
        f"waiting for longer: ada@laptop: 2 x {V6}"
    )


def test_a_later_proxy_that_is_placed_holds_its_slices() -> None:
    pods = [proxy("ada", V6, V6, at="01"), proxy("bob", V6, at="02"), proxy("eve", V6, at="03")]
    assert shortage_of("ada", pods, slices=2) is None
    placed = {("bob", "2026-01-01T00:00:02Z")}
    claims = read_claims(service(2), pods, placed)
    short = find_shortage(service(2), "ada", claims)
    assert short is not None
    assert (short.free, short.holders) == ({V6: 1}, (f"bob@laptop: 1 x {V6}",))
    assert find_shortage(service(2), "eve", claims) is None, "ada waits, and one is free"
    restarted = proxy("bob", V6, at="04")
    claims = read_claims(service(2), [pods[0], restarted], placed)
    assert find_shortage(service(2), "ada", claims) is None, "it asks anew"


def test_placements_matter_only_where_not_all_claims_fit() -> None:
    pods = [proxy("ada", V6, V6), proxy("bob", V6, at="01"), proxy("eve", V5, at="02")]

    def to_check(slices: int, placed: set[tuple[str, str]]) -> list[str]:
        claims = read_claims(service(slices), pods, placed)
        return [one.holder.name for one in claims_to_check(service(slices), "ada", claims)]

    assert to_check(3, set()) == []
    assert to_check(2, set()) == ["bob"]
    assert to_check(2, {("bob", "2026-01-01T00:00:01Z")}) == []


def test_slices_that_are_enough_for_all_are_no_shortage() -> None:
    assert shortage_of("eve", [proxy("ada", V6, V6), proxy("eve", V6, at="01")]) is None


def test_slices_that_a_proxy_can_do_without_are_not_counted() -> None:
    one = proxy("ada", V6, V6, V6, elastic=2)
    assert shortage_of("eve", [one, proxy("eve", V6, V6, at="01")]) is None
    assert shortage_of("eve", [one, proxy("eve", V6, V6, V6, at="01")]) is not None
    assert shortage_of("eve", [one, proxy("eve", V6, V6, V6, at="01", elastic=1)]) is None


def test_upstreams_proxies_count_though_they_bear_no_labels_of_ours() -> None:
    theirs = proxy("isc-proxy-upstream", V6, V6, V6)
    theirs["metadata"]["labels"] = {"job-name": "isc-proxy-upstream"}
    theirs["metadata"]["annotations"] = {}
    short = shortage_of("eve", [theirs, proxy("eve", V6, at="01")])
    assert short.holders == (f"isc-proxy-upstream: 3 x {V6}",)


def other_service(pod: Object) -> None:
    pod["spec"]["containers"][0]["args"][0] = (
        "--resource_manager_address=b-pathways-head-0-0.b:29001"
    )


def not_running(pod: Object) -> None:
    pod["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}


def deleted(pod: Object) -> None:
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"


def without_slices(pod: Object) -> None:
    del pod["spec"]["containers"][0]["args"][1]


def another_program(pod: Object) -> None:
    pod["spec"]["containers"][0]["name"] = "train"


@pytest.mark.parametrize(
    "change", [other_service, not_running, deleted, without_slices, another_program]
)
def test_what_holds_nothing_or_not_for_long_is_left_out(change: Any) -> None:
    one = proxy("ada", V6, V6, V6)
    mine = proxy("eve", V6, at="01")
    assert shortage_of("eve", [one, mine]) is not None
    change(one)
    assert shortage_of("eve", [one, mine]) is None


def test_an_address_with_the_clusters_domain_is_the_same_service() -> None:
    one = proxy("ada", V6, V6, V6)
    host, _, port = service().address.rpartition(":")
    one["spec"]["containers"][0]["args"][0] = (
        f"--resource_manager_address={host}.default.svc.cluster.local:{port}"
    )
    assert shortage_of("eve", [one, proxy("eve", V6, at="01")]) is not None


def test_unreported_types_are_no_shortage() -> None:
    assert shortage_of("eve", [proxy("ada", V5), proxy("eve", V5, at="01")]) is None


def test_a_proxy_that_does_not_run_itself_has_no_shortage() -> None:
    assert shortage_of("eve", [proxy("ada", V6, V6, V6)]) is None
