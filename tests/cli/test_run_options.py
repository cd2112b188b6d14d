"""What `sps run` makes of its options, upstream's among them."""

from __future__ import annotations

import pytest
import typer

from shared_pathways_service.agent.journal import Entry
from shared_pathways_service.api.proxy_options import ProxyOptions, split_options
from shared_pathways_service.cli.commands.sessions.run import _program
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.cli.options.run_options import _instances
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.runtime.processes import identity_of


def test_the_program_comes_in_one_of_two_ways() -> None:
    assert _program(["a", "b c"], None) == ["a", "b c"]
    assert _program([], "a 'b c' --d=e") == ["a", "b c", "--d=e"]
    for words, command in [([], None), (["a"], "a"), ([], "'open")]:
        with pytest.raises(typer.BadParameter):
            _program(words, command)


def test_slices_come_in_one_of_two_ways() -> None:
    assert _instances(None, None, None) is None
    assert _instances(["tpuv6e:2x2=2"], None, None) == {"tpuv6e:2x2": 2}
    assert _instances(None, "tpuv5:2x2x1", None) == {"tpuv5:2x2x1": 1}
    assert _instances(None, None, 3) == {"tpuv6e:2x2": 3}
    with pytest.raises(InvalidRequestError, match="--slices"):
        _instances(["tpuv6e:2x2=2"], "tpuv6e:2x2", 1)


def test_options_are_split_where_a_key_begins() -> None:
    text = (
        "use_insecure_credentials:true,xla_flags:--xla_a --xla_b=1,2,"
        "tolerations:a=b:NoSchedule,c:NoExecute,cpu:8"
    )
    assert split_options([text]) == [
        "use_insecure_credentials:true",
        "xla_flags:--xla_a --xla_b=1,2",
        "tolerations:a=b:NoSchedule,c:NoExecute",
        "cpu:8",
    ]
    assert split_options([""]) == []
    # What upstream takes, unknown keys and any case too.
    assert split_options(["use_insecure_credentials:true,Foo:bar", "Sidecar:true,cpu:8"]) == [
        "use_insecure_credentials:true",
        "Foo:bar",
        "Sidecar:true",
        "cpu:8",
    ]
    options = ProxyOptions.from_list(split_options([text]))
    assert options.tolerations == ("a=b:NoSchedule", "c:NoExecute")


def entry(home: str, **options: str) -> Entry:
    return Entry(
        session="s",
        name="n",
        home=HomeChoice(name=home, options=options),
        owner=identity_of(),
        agent=identity_of(),
        since="",
    )


def test_a_session_is_at_the_place_that_it_was_made_with() -> None:
    there = entry("kubernetes", context="c", namespace="ns", cluster="", pathways_service="h:1")
    assert Place.of(there) == Place(context="c", namespace="ns", pathways_service="h:1")
    assert Place().has(there)
    assert Place(context="c", namespace="ns").has(there)
    assert not Place(context="c").has(there)
    assert not Place(context="d", namespace="ns").has(there)
    assert not Place(context="c", namespace="ns").has(entry("embedded"))
    assert Place().has(entry("embedded"))


def test_a_place_is_checked_as_connect_does() -> None:
    assert Place().home == "embedded"
    assert Place(pathways_service="h:1").home == "kubernetes"
    with pytest.raises(InvalidRequestError, match="project"):
        Place(cluster="c").request()
    with pytest.raises(InvalidRequestError, match="namespace"):
        Place(namespace="ns").request()
