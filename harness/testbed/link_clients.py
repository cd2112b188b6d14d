"""A client that computes until it is told to stop, and notices every wrong bit."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.programs import DEADLINE_S, Program, program
from harness.testbed.clients import PRELUDE, journal, tenant
from harness.testbed.ways import Way
from shared_pathways_service.agent.journal import Entry
from shared_pathways_service.testing.testbed import Namespace

__all__ = ["LinkClient", "LinkNews", "Report", "check_end", "link_client", "link_program"]

#: Arithmetic modulo 2**32, done again by numpy: a byte that is lost, doubled or changed shows.
_SOURCE = """
import queue
wanted = queue.SimpleQueue()
def read():
    for line in sys.stdin:
        wanted.put(line.strip())
threading.Thread(target=read, daemon=True).start()

steps = 0
links = []
def hear(event):
    if event.kind.startswith("link."):
        links.append([event.kind, steps, getattr(event, "duration_s", None),
                      getattr(event, "attempts", None), event.reason])

def report(word):
    say(word, steps=steps, links=links)

def run():
    global steps
    import jax, jax.numpy as jnp, numpy as np
    draw = np.random.default_rng(SEED)
    def words(count):
        return draw.integers(0, 1 << 32, count, dtype=np.uint32)
    @jax.jit
    def step(x, factor, plus):
        return x * factor + plus
    @jax.jit
    def total(x):
        return jnp.sum(x, dtype=jnp.uint32)
    def same(found, expected):
        assert np.array_equal(np.asarray(found), expected), f"wrong bits in step {steps}"
    def several_in_flight(x, mirror):
        for factor, plus in words(2 * int(draw.integers(1, 9))).reshape(-1, 2):
            x, mirror = step(x, factor, plus), mirror * factor + plus
        return x, mirror
    def fresh_program(x, mirror):
        factor, plus = words(2)
        return jax.jit(lambda x: x * factor + plus)(x), mirror * factor + plus
    def transfer(size):
        sent = words(size)
        there = jax.device_put(sent)
        same(total(there), sent.sum(dtype=np.uint32))
        same(there, sent)
    mirror = words(4096)
    x = jax.device_put(mirror)
    say("working", name=connection.proxy_job_name)
    while True:
        number = steps % 64
        if number == 63:
            transfer(4 << 20)
        elif number % 8 == 3:
            transfer(1 << 18)
        elif number % 8 == 5:
            x, mirror = fresh_program(x, mirror)
        elif number % 8 == 7:
            time.sleep(float(draw.uniform(0, 0.3)))
        x, mirror = several_in_flight(x, mirror)
        same(x, mirror)
        steps += 1
        while not wanted.empty():
            if (word := wanted.get()) == "stop":
                return
            report(word)

try:
    with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, on_event=hear,
                    keep_for=KEEP_FOR) as connection:
        run()
except errors.SharedPathwaysError as error:
    report("failed")
    say("error", error=error.to_json(), cause=type(error.__cause__).__name__)
else:
    report("stopped")
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkNews:
    """One event of the link.

    Attributes:
      kind: ``link.lost``, ``link.dial_failed`` or ``link.resumed``.
      step: The number of steps before it.
      duration_s: Of the loss, for ``link.resumed``.
      attempts: The same.
      reason: Of the event.
    """

    kind: str
    step: int
    duration_s: float | None
    attempts: int | None
    reason: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The client's own view.

    Attributes:
      steps: The number of steps whose results were right; all were.
      links: The events of the link.
    """

    steps: int
    links: Sequence[LinkNews]

    @property
    def kinds(self) -> list[str]:
        """Their kinds, without failed dials."""
        return [news.kind for news in self.links if news.kind != "link.dial_failed"]

    @property
    def dials(self) -> int:
        """The number of dials that lost links took."""
        return sum(news.attempts or 0 for news in self.links)


class LinkClient:
    """A client at work; use `link_client`.

    Attributes:
      running: Its process.
      name: Of its proxy's Job.
    """

    def __init__(self, running: Program) -> None:
        self.running = running
        self.name: str = running.expect("working")["name"]

    def step(self, timeout: float = DEADLINE_S) -> Report:
        """Waits until one more step is complete, however long the link is lost."""
        self.ask_for_step()
        return self.stepped(timeout)

    def ask_for_step(self) -> None:
        """Begins what `stepped` waits for."""
        self.running.tell("step")

    def stepped(self, timeout: float = DEADLINE_S) -> Report:
        """Waits for the step that `ask_for_step` asked for."""
        return _report(self.running.expect("step", timeout))

    def stop(self) -> Report:
        """Lets it stop and close its connection; returns its last report."""
        self.running.tell("stop")
        report = _report(self.running.expect("stopped"))
        assert self.running.wait() == 0
        return report

    def failed(self, timeout: float = DEADLINE_S) -> tuple[Report, dict[str, Any]]:
        """Waits until its session has failed; returns its last report, and its error."""
        report = _report(self.running.expect("failed", timeout))
        error: dict[str, Any] = self.running.expect("error")["error"]
        assert self.running.wait() == 0
        return report, error

    @property
    def entry(self) -> Entry:
        """Its entry in the journal."""
        [found] = [entry for entry in journal() if entry.name == self.name]
        return found

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the client and its agent for the length of the block, as a closed lid does."""
        pids = (self.running.pid, self.entry.agent.pid)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)


def check_end(error: Mapping[str, Any], how: str) -> None:
    """Checks the error of a client whose proxy ended while its link was lost.

    Its pod is missed by the next dial, and by the watch; either comes first.

    Args:
      error: As JSON.
      how: What the watch says, e.g. ``was ended``.
    """
    if error["type"] == "TunnelError":
        assert "gone for good" in error["message"], error
        assert "not found" in error["message"], error
    else:
        assert error["type"] == "ProxyFailed", error
        assert how in error["message"], error


@contextlib.contextmanager
def link_client(
    namespace: Namespace,
    way: Way,
    *,
    keep_for: str | None = None,
    seed: int = 1,
    prefix: Sequence[str] = (),
) -> Iterator[LinkClient]:
    """Runs a client, whose requests take a way, for the length of the block.

    Args:
      namespace: Of the service.
      way: To the API server.
      keep_for: The keyword of connect().
      seed: Of its data.
      prefix: Of its command.
    """
    variables = dict(tenant(namespace))
    variables["KUBECONFIG"] = str(way.kubeconfig(namespace, namespace.user("tenant")))
    with program(link_program(keep_for, seed), env=variables, prefix=prefix) as running:
        yield LinkClient(running)


def link_program(keep_for: str | None = None, seed: int = 1) -> str:
    """Returns the source of a client, for `program`."""
    return PRELUDE + _SOURCE.replace("SEED", str(seed)).replace("KEEP_FOR", repr(keep_for))


def _report(data: Mapping[str, Any]) -> Report:
    names = [field.name for field in dataclasses.fields(LinkNews)]
    links = [LinkNews(**dict(zip(names, news, strict=True))) for news in data["links"]]
    return Report(steps=data["steps"], links=links)
