"""The texts that cite kept results, each made from the rows of one file."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ["BLOCKS", "Block"]

Rows: TypeAlias = Mapping[str, Any]
_PACKAGE = "shared_pathways_service"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """A text of a page, between its markers.

    Attributes:
      page: The page.
      source: The kept result.
      measures: What it measures: a result is as old as the number of commits of this.
      command: What measures it again: a script, or a module with its arguments.
      text: Makes the text of the result's rows.
    """

    page: str
    source: str
    measures: tuple[str, ...]
    command: str
    text: Callable[[Rows], str]

    @property
    def how(self) -> str:
        """The command as it is typed."""
        return self.command if self.command.startswith("scripts/") else f"python -m {self.command}"


def _proxy(rows: Rows) -> str:
    sync, one, two = rows["sync"], rows["async_8"], rows["async_8_of_2"]
    return (
        "A small program waits for a round trip: `jit(x + 1)(x).block_until_ready()` took "
        f"{sync['median'] / 1000:.1f} ms. Over 8 devices the proxy ran {one['ratio']:.1f} times as "
        "many small programs per second as `jit` on the CPU on one slice, and "
        f"{two['ratio']:.1f} times as many on two."
    )


def _array_lists(rows: Rows) -> str:
    ratio, seconds = rows["ratio"], rows["seconds"]
    return (
        f"A list of {rows['arrays']:,} small arrays took {seconds['put']:.1f} s to put and "
        f"{seconds['fetch']:.1f} s to fetch, {ratio['put']:.0f} and {ratio['fetch']:.0f} times as "
        f"long as on the CPU beside it; a program of 1,000 of them {ratio['program']:.1f} times."
    )


def _manager_scale(rows: Rows) -> str:
    head = (
        *("slices", "left/died/requested, p99 to the notice", "of the target of 100 ms"),
        *("heartbeats, of a core", "with triggers", "joining, CPU", "restart, CPU", "memory"),
    )
    lines = []
    for size in rows["sizes"]:
        cuts = [size["latency"][name]["all"] for name in ("freed", "lost", "asked")]
        p99 = "/".join(f"{cut['p99_s'] * 1e3:.0f}" for cut in cuts)
        cells = (
            *(f"{size['slices']:,}", f"{p99} ms"),
            f"{max(cut['p99_to_wanted'] for cut in cuts):.2f}",
            *(f"{size['beats']['cpu_ratio']:.1%}", f"{size['load']['cpu_ratio']:.1%}"),
            *(f"{size['joining']['cpu_s']:.1f} s", f"{size['restart']['cpu_s']:.1f} s"),
            f"{size['rss_bytes']['full'] / 2**20:.0f} MiB",
        )
        lines.append(f"| {' | '.join(cells)} |")
    medians = [
        size["latency"][name]["all"]["p50_s"] * 1e3
        for size in rows["sizes"]
        for name in ("freed", "lost", "asked")
    ]
    triggers = rows["sizes"][0]["latency"]["freed"]["all"]["count"]
    below = (
        f"These are the times of all triggers, {triggers} of each kind. The median for a "
        f"placement is {min(medians):.0f} to {max(medians):.0f} ms. Processor times are the "
        "resource manager's own."
    )
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines, "", below])


#: Rows of the table of slow links, as the page and as the benchmark name them, and their format.
_SLOW_ROWS = (
    ("one step that reads its loss (median)", "one step that reads its loss", ".2f"),
    ("200 steps, loss read every step", "loss read every step", ".0f"),
    ("200 steps, loss read every 10 steps", "loss read every 10 steps", ".0f"),
    (
        "200 steps, losses by `copy_to_host_async`, read 10 steps later",
        "losses copied asynchronously, read 10 steps later",
        ".0f",
    ),
    ("20 arrays read one by one", "20 arrays read one by one", ".0f"),
    ("20 arrays read by one `jax.device_get`", "20 arrays read together", ".1f"),
    ("20 arrays put and awaited one by one", "20 arrays put and awaited one by one", ".0f"),
    ("20 arrays put by one `jax.device_put`", "20 arrays put together", ".1f"),
    ("8 arrays initialised eagerly", "8 arrays initialised eagerly", ".0f"),
    ("8 arrays initialised in one `jit`", "8 arrays initialised in one jit", ".1f"),
    ("from JAX's first look at its devices to the first result", "to the first result", ".0f"),
)


def _slow_links(rows: Rows) -> str:
    ways = [f"{way} {delay} ms" for delay in (50, 150) for way in ("plain", "link")]
    part = "upload, part of the rate"
    upload = f"{rows['upload_mb']} MB up, part of the line's rate"
    return "\n".join(
        [
            f"| | {' | '.join(way.replace(' ', ', ', 1) for way in ways)} |",
            "|---" * (len(ways) + 1) + "|",
            *(
                f"| {shown} | "
                + " | ".join(format(rows[way]["round trips"][name], form) for way in ways)
                + " |"
                for shown, name, form in _SLOW_ROWS
            ),
            f"| {upload} | {' | '.join(f'{rows[way][part]:.2f}' for way in ways)} |",
        ]
    )


#: The forwarders of links, as the page and as the benchmark name them.
_FORWARDERS = {"link": "link", "plain": "plain connection", "kubectl": "kubectl"}


def _tunnel(rows: Rows) -> str:
    found = [rows["forwarders"][name] for name in _FORWARDERS]
    lines = []
    for label, shown in (
        ("down_1", "one transfer down"),
        ("up_1", "one transfer up"),
        ("down_8", "eight down"),
        ("up_8", "eight up"),
    ):
        rates = [row[f"{label}_mb_per_s"] for row in found]
        parts = [row[f"{label}_mb_per_s"] / row[f"{label}_bound_mb_per_s"] for row in found]
        cells = (f"{rate:.0f} ({part:.2f})" for rate, part in zip(rates, parts, strict=True))
        lines.append(f"| {shown}, MB/s (part of the bound) | {' | '.join(cells)} |")
    for label, shown in (
        ("rtt_p50_us", "a round trip"),
        ("rtt_p99_us", "the slowest of a hundred"),
        ("rtt_p50_beside_upload_us", "a round trip beside an upload of 1 GB"),
    ):
        cells = (f"{row[label] / 1e3:.2f}" for row in found)
        lines.append(f"| {shown}, ms | {' | '.join(cells)} |")
    below = (
        "Medians of all rounds. The bound is the rate of a forwarder without any cost, on the same "
        "two cores."
    )
    head = ("", *_FORWARDERS.values())
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines, "", below])


def _tunnel_lines(rows: Rows) -> str:
    head = ("line", "way", "link, MB/s", "of kubectl's", "of a plain connection's")
    lines = []
    for line, ways in rows["lines"].items():
        for way, row in ways.items():
            ratios = [
                "{:.2f} ({:.2f} to {:.2f})".format(*row[f"of_{other}_median_min_max"])
                for other in ("kubectl", "plain")
            ]
            lines.append(f"| {line} | {way} | {row['link_mb_per_s']:.1f} | {' | '.join(ratios)} |")
    below = "Ratios are medians of all rounds, with the least and the greatest. The aim is 1."
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines, "", below])


def _web_page(rows: Rows) -> str:
    one, all_of_them = rows["update_slices_1_s"], rows[f"update_slices_{rows['slices']}_s"]
    return (
        f"With {rows['slices']:,} slices and {rows['tenants']} tenants, Chromium first paints the "
        f"page after {rows['first_paint_s']:.1f} s, and shows all slices after "
        f"{rows['all_slices_s']:.1f} s. A change of one slice takes {one['median'] * 1e3:.0f} ms, "
        f"and a change of all of them at once {all_of_them['median'] * 1e3:.0f} ms (medians; the "
        f"slowest {one['worst'] * 1e3:.0f} and {all_of_them['worst'] * 1e3:.0f} ms). The aims are "
        "1 s and 100 ms."
    )


def _partitions(rows: Rows) -> str:
    links, belief = sum(rows["faults"].values()), rows["double_belief_s"]
    lost = sum(
        count
        for name, count in rows["faults"].items()
        if name.startswith(("from", "to", "silent", "reset"))
    )
    broken = len(rows["violations"]) or "no"
    return (
        f"{rows['schedules']} random schedules (seed {rows['seed']}) broke {broken} promise. Of "
        f"{links} impaired links, {lost} lost or reset everything in one direction or both. "
        f"{rows['decisions']['slice.lost']} times a slice was lost, and "
        f"{rows['decisions']['tenant.expired']} times a tenant expired. After the heal everything "
        f"agreed within {rows['settled_s']['most']:.1f} s. {belief['times']} times "
        f"two proxies believed in one slice, for up to {belief['most']:.0f} s, while the older one "
        f"was cut off. A slice counted as hung after {rows['times']['hung_s']:g} s."
    )


def _distributed_speed(rows: Rows) -> str:
    table = (
        ("programs per second, one slice of one host, all 4 devices", "executes_slice"),
        ("programs per second, one slice of one host, one of the devices", "executes_one"),
        ("programs per second, each 100th result is read", "dispatched"),
        ("training steps per second, each loss is read", "steps"),
        ("upload of 64 MiB, split over 4 hosts", "upload"),
        ("fetch of these", "fetch"),
        ("copy of 64 MiB from slice to slice", "reshard"),
        ("programs per second, times executors, with 2 executors", "executors_2"),
        ("programs per second, times executors, with 4 executors", "executors_4"),
    )
    return "\n".join(
        [
            "| what | ratio | wanted | to |",
            "|---|---|---|---|",
            *(
                f"| {shown} | {rows[name]['ratio']:.2f} | {rows[name]['wanted']} "
                f"| {rows[name]['limit']['of']} |"
                for shown, name in table
            ),
        ]
    )


def _distributed_scale(rows: Rows) -> str:
    names = [name for name in rows["scale"] if name != "message_bytes"]
    names.sort(key=lambda name: (name.startswith("null"), int(name.split()[1])))
    lines = []
    for name in names:
        row = rows["scale"][name]
        kind, count = name.split()
        cells = (
            f"{count}, with XLA" if kind == "xla" else count,
            f"{row['executes_per_s']:,.0f}",
            *(f"{row[key]:.0f}" for key in ("per_executor_us", "proxy_us", "executor_us")),
            *(f"{row[key]:,.0f}" for key in ("proxy_threads", "proxy_fds", "proxy_mb")),
        )
        lines.append(f"| {' | '.join(cells)} |")
    head = (
        *("executors", "executes/s", "each", "proxy", "executor", "threads of the proxy"),
        *("open files", "MB"),
    )
    sizes = rows["scale"]["message_bytes"]
    below = (
        f"An executor gets {sizes['commands of an execute']:.0f} bytes for each execute and sends "
        f"{sizes['reports of an execute']:.0f}; a placement has {sizes['placement']:.0f} bytes for "
        "each executor."
    )
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines, "", below])


def _executor_leaks(rows: Rows) -> str:
    grown = rows["growth"]

    def change(what: str, unit: str = "") -> str:
        return f"from {grown[what]['first']:.0f} to {grown[what]['last']:.0f}{unit}"

    flat = "all" if all(one["flat"] for one in grown.values()) else "not all"
    return (
        f"{rows['losses']:,} executors were lost in one connection, with {rows['programs']:,} "
        f"programs between. From the first quarter to the last, the proxy's memory went "
        f"{change('proxy resident_mb', ' MB')} and its threads {change('proxy threads')}, the "
        f"memory of the resource manager {change('rm resident_mb', ' MB')}, and of JAX "
        f"{change('client resident_mb', ' MB')}; {flat} figures (memory, threads, descriptors, "
        "processes, files) stayed within what is allowed."
    )


def _executor_kills(rows: Rows) -> str:
    kills = [one["step_s"] for one in rows["each"] if not one["victim"].startswith("stopped")]
    late = sum(seconds > rows["wanted_s"] for seconds in kills)
    stopped = {name: of for name, of in rows["first_step"].items() if name.startswith("stopped")}
    cells = "; ".join(f"{name}: {of['median_s']:.0f} s" for name, of in stopped.items())
    return (
        f"{rows['rounds']} rounds had {len(rows['faults'])} faults: nothing else was lost. After "
        f"{len(kills)} kills of executors, workers or both, the first step on another slice came "
        f"after a median of {statistics.median(kills):.1f} s, 90 % within "
        f"{statistics.quantiles(kills, n=10)[-1]:.1f} s and all within {max(kills):.0f} s; "
        f"{late} of them took longer than the {rows['wanted_s']:g} s that are wanted. Where a "
        f"process was stopped by SIGSTOP instead, the medians are longer ({cells})."
    )


def _upload_ends(rows: Rows) -> str:
    def total(kind: str, what: Callable[[Rows], int]) -> int:
        return sum(what(of) for of in rows[kind]["endings"].values())

    def rounds(kind: str) -> int:
        return total(kind, lambda of: int(of["rounds"]))

    def ended(kind: str) -> int:
        return total(kind, lambda of: int(of["rounds"]) - int(of["ends"].get("errors", 0)))

    def together(kind: str) -> int:
        return total(kind, lambda of: int(of["raced"]))

    guarded = rows["guarded"]["endings"]
    ways = ", ".join(f"{of['rounds']} {name}" for name, of in guarded.items())
    median = max(of["error_s"]["median"] for of in guarded.values())
    longest = max(of["error_s"]["max"] for of in guarded.values())
    return (
        f"In {rounds('guarded'):,} rounds ({ways}) a tunnel ended while a program uploaded "
        f"{rows['load']['uploads']} arrays, with JAX's race held open: {ended('guarded')} "
        f"processes crashed or hung, and two uploads failed together in {together('guarded')} "
        f"rounds. The last error came after medians of up to {median:.1f} s and at most "
        f"{longest:.1f} s. Where all connections are closed at once instead, two uploads failed "
        f"together in {together('control')} of {rounds('control')} rounds; of their processes, "
        f"{ended('control')} crashed or hung."
    )


def _host_partitions(rows: Rows) -> str:
    seconds = rows["seconds"]

    def median(which: str, what: str) -> str:
        return f"{statistics.median(seconds[which][what]):.1f} s"

    return (
        f"Programs failed after {median('hosts', 'failed_s')} of the "
        f"{rows['collective_timeout_s']} s allowed, the proxy gave a host up after "
        f"{median('proxy', 'lost_s')} and the resource manager after "
        f"{median('manager', 'lost_s')}, as it was set to ({rows['hung_after_s']:g} s). Medians of "
        f"{rows['rounds'] // 3} each; each loss was decided once."
    )


def _attack(rows: Rows) -> str:
    def least(*servers: str) -> float:
        return min(float(of["share"]) for s in servers for of in rows["attacks"][s].values())

    own = [one["share"] for one in rows["attacks"]["the victim's proxy"].values()]
    worst = [share for share in own if share < rows["aim"]]
    aimed = [server for server in rows["attacks"] if "victim" not in server]
    text = (
        f"With `{rows['engine']}` the other tenant kept at least {least(*aimed):.2f} of its "
        f"programs per second under each of {len(own)} attacks on {', '.join(aimed)}, and at "
        f"least {rows['least_share_of_computing']:.2f} of its rate beside an attacker that only "
        f"computes. Attacks on its *own* proxy, for which no token is needed, are different: "
        f"{len(worst)} of the {len(own)} left it {min(worst):.2f} to {max(worst):.2f} of its rate."
    )
    executor = "the victim's executor"
    if executor in rows["attacks"]:
        text += f" Attacks on its own executor left it {least(executor):.2f} or more."
    return text


def _maxtext(rows: Rows) -> str:
    versions, passed = rows["versions"], list(rows["checks"].values())
    elastic = rows["elastic"]
    return (
        f"{sum(passed)} of {len(passed)} checks passed with MaxText {versions['maxtext']}, JAX "
        f"{versions['jax']} and Flax {versions['flax']}. The next step came "
        f"{elastic['loss_to_next_step_s']:.0f} s after the loss of a slice, and "
        f"{elastic['slice_back_to_next_step_s']:.0f} s after its return."
    )


_SERVERS = f"{_PACKAGE}/servers"
BLOCKS: Mapping[str, Block] = {
    "proxy": Block(
        page="docs/limits.md",
        source="benchmarks/results/proxy.json",
        measures=(f"{_SERVERS}/proxy", f"{_PACKAGE}/jax_client"),
        command="benchmarks.proxy",
        text=_proxy,
    ),
    "array_lists": Block(
        page="docs/limits.md",
        source="benchmarks/results/array_lists.json",
        measures=(f"{_SERVERS}/proxy", f"{_PACKAGE}/jax_client"),
        command="benchmarks.array_lists",
        text=_array_lists,
    ),
    "rm_scale": Block(
        page="docs/operations.md",
        source="benchmarks/results/rm_scale.json",
        measures=(f"{_SERVERS}/resource_manager", f"{_PACKAGE}/scheduling"),
        command="benchmarks.rm_scale",
        text=_manager_scale,
    ),
    "slow_links": Block(
        page="docs/slow_links.md",
        source="benchmarks/results/slow_links.json",
        measures=(f"{_PACKAGE}/tunnel", f"{_SERVERS}/proxy"),
        command="benchmarks.slow_links",
        text=_slow_links,
    ),
    "tunnel": Block(
        page="docs/links.md",
        source="benchmarks/results/tunnel.json",
        measures=(f"{_PACKAGE}/tunnel",),
        command="benchmarks.tunnel",
        text=_tunnel,
    ),
    "tunnel_lines": Block(
        page="docs/links.md",
        source="benchmarks/results/tunnel_lines.json",
        measures=(f"{_PACKAGE}/tunnel",),
        command="benchmarks.tunnel",
        text=_tunnel_lines,
    ),
    "web_page": Block(
        page="docs/web_page.md",
        source="benchmarks/results/web_page.json",
        measures=(f"{_PACKAGE}/web",),
        command="benchmarks.web_page",
        text=_web_page,
    ),
    "partitions": Block(
        page="docs/partitions.md",
        source="stress/results/partitions.json",
        measures=(_SERVERS, f"{_PACKAGE}/scheduling"),
        command="stress.partitions",
        text=_partitions,
    ),
    "distributed_speed": Block(
        page="docs/distributed.md",
        source="benchmarks/results/distributed.json",
        measures=(_SERVERS,),
        command="benchmarks.distributed",
        text=_distributed_speed,
    ),
    "distributed_scale": Block(
        page="docs/distributed.md",
        source="benchmarks/results/distributed.json",
        measures=(_SERVERS,),
        command="benchmarks.distributed --only scale",
        text=_distributed_scale,
    ),
    "executor_leaks": Block(
        page="docs/distributed.md",
        source="stress/results/executor_leaks.json",
        measures=(_SERVERS,),
        command="stress.executor_leaks",
        text=_executor_leaks,
    ),
    "executor_kills": Block(
        page="docs/distributed.md",
        source="stress/results/executor_kills.json",
        measures=(_SERVERS,),
        command="stress.executor_kills",
        text=_executor_kills,
    ),
    "upload_ends": Block(
        page="docs/limits.md",
        source="stress/results/upload_ends.json",
        measures=(f"{_PACKAGE}/tunnel",),
        command="stress.upload_ends",
        text=_upload_ends,
    ),
    "host_partitions": Block(
        page="docs/distributed.md",
        source="stress/results/host_partitions.json",
        measures=(_SERVERS,),
        command="stress.host_partitions",
        text=_host_partitions,
    ),
    "attack_distributed": Block(
        page="docs/isolation.md",
        source="stress/results/attack_distributed.json",
        measures=(_SERVERS,),
        command="stress.attack --engine distributed",
        text=_attack,
    ),
    "maxtext": Block(
        page="docs/maxtext.md",
        source="conformance/results/maxtext.json",
        measures=(_PACKAGE,),
        command="scripts/maxtext",
        text=_maxtext,
    ),
    "maxtext_distributed": Block(
        page="docs/maxtext.md",
        source="conformance/results/maxtext_distributed.json",
        measures=(_PACKAGE,),
        command="scripts/maxtext --engine distributed",
        text=_maxtext,
    ),
}
