"""The parts of a run: which layers run together, and with how many processes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence

from harness.layers.plugin import LAYERS

__all__ = [
    "Form",
    "Phase",
    "PlannedTest",
    "chosen_by",
    "files_form",
    "form_of",
    "long_form",
    "unit_form",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedTest:
    """A test that was collected.

    Attributes:
      layer: The marker of its layer.
      heavy: Whether it takes all of the machine, and so runs alone.
      is_property: Whether hypothesis chooses its examples.
      group: Names the tests that share fixtures with it: its module's, or more.
      thorough: Whether it shows for another value or kind what a test of `--all` shows for one.
    """

    layer: str
    heavy: bool
    is_property: bool
    group: str
    thorough: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A run of pytest.

    Attributes:
      name: Of its files, and in what is printed.
      layers: Whose tests it runs.
      heavy: Whether it runs the heavy tests of these layers, or all others.
      thorough: Whether it runs the thorough ones, or all others; None: both.
      properties: Whether it runs tests with hypothesis, or all others; None: both.
      workers: Processes that run tests at once.
      options: More options of pytest.
      env: Variables beside those of the run.
      beside: A command that prepares what comes later, and runs at the same time.
    """

    name: str
    layers: Sequence[str]
    heavy: bool = False
    thorough: bool | None = False
    properties: bool | None = None
    workers: int
    options: Sequence[str] = ()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    beside: Sequence[str] = ()

    @property
    def markers(self) -> str:
        """The expression that selects its tests."""
        wanted = {"heavy": self.heavy, "thorough": self.thorough, "hypothesis": self.properties}
        parts = [f"({' or '.join(self.layers)})"]
        parts += [mark if has else f"not {mark}" for mark, has in wanted.items() if has is not None]
        return " and ".join(parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """A whole run.

    Attributes:
      phases: In their order.
      commands: What runs after them, and fails the run if it fails.
      paths: The files and folders whose tests it has; all without any.
    """

    phases: Sequence[Phase]
    commands: Sequence[Sequence[str]] = ()
    paths: Sequence[str] = ()


def form_of(*, everything: bool, cores: int) -> Form:
    """Returns what `scripts/test` runs, or `scripts/test --all`.

    Tests of layer testbed wait for a part of their time, in which others can compute.
    """
    compat = ["scripts/compat", "--short"]
    if everything:
        phases = [
            Phase(
                name="mixed",
                layers=[*LAYERS],
                workers=_computing(cores),
                beside=[*compat, "--prepare"],
            )
        ]
    else:
        phases = [Phase(name="mixed", layers=["unit", "local"], workers=_computing(cores))]
    layers = [layer for phase in phases for layer in phase.layers]
    heavy = Phase(name="heavy", layers=layers, heavy=True, workers=1)
    gate = [sys.executable, "-m", "benchmarks.gate"]
    commands = [gate, compat] if everything else []
    return Form(phases=[*phases, heavy], commands=commands)


def unit_form(*, cores: int) -> Form:
    """Returns what `scripts/test --unit` runs."""
    return Form(phases=[Phase(name="unit", layers=["unit"], workers=_computing(cores))])


def files_form(paths: Sequence[str], *, cores: int, workers: int | None = None) -> Form:
    """Returns what `--files` runs: the tests of some files and folders, of any layer.

    Args:
      paths: At least one.
      cores: Of this machine.
      workers: Processes that run tests at once; None: as many as for all tests.
    """
    workers = _computing(cores) if workers is None else workers
    phases = [
        Phase(name="files", layers=[*LAYERS], thorough=None, workers=workers),
        Phase(name="heavy", layers=[*LAYERS], thorough=None, heavy=True, workers=1),
    ]
    return Form(phases=phases, paths=paths)


def _computing(cores: int) -> int:
    """Returns how many tests run at once: each waits a little, and starts several processes."""
    return 2 * cores


def long_form(*, seed: int, cores: int) -> Form:
    """Returns what `scripts/test --long` runs: what takes hours, and is chosen at random.

    Args:
      seed: Of hypothesis' examples.
      cores: Of this machine.
    """
    thorough = Phase(
        name="thorough",
        layers=[*LAYERS],
        thorough=True,
        properties=False,
        workers=_computing(cores),
    )
    properties = Phase(
        name="properties",
        layers=["unit", "local"],
        thorough=None,
        properties=True,
        workers=cores,
        options=[f"--hypothesis-seed={seed}", "--timeout=7200"],
        env={"SPS_HYPOTHESIS_PROFILE": "long"},
    )
    long = Phase(name="long", layers=["long"], workers=cores, options=["--timeout=7200"])
    heavy = Phase(name="heavy", layers=["long"], heavy=True, workers=1, options=["--timeout=7200"])
    commands = [
        ["scripts/compat"],
        ["scripts/stress", "10"],
        [sys.executable, "-m", "benchmarks.gate", "--prove"],
    ]
    return Form(phases=[thorough, properties, long, heavy], commands=commands)


def chosen_by(phase: Phase, plan: Mapping[str, PlannedTest]) -> list[str]:
    """Returns the tests of a phase by group, with the groups of its layers spread evenly.

    So what waits runs beside what computes: each process of pytest gets a part of the list.
    """
    groups: dict[str, list[str]] = {}
    layers: dict[str, list[str]] = {}
    for test, planned in plan.items():
        if (
            planned.layer in phase.layers
            and planned.heavy == phase.heavy
            and phase.thorough in (None, planned.thorough)
            and phase.properties in (None, planned.is_property)
        ):
            if planned.group not in groups:
                layers.setdefault(planned.layer, []).append(planned.group)
            groups.setdefault(planned.group, []).append(test)
    places = {
        group: (number + 0.5) / len(of_layer)
        for of_layer in layers.values()
        for number, group in enumerate(of_layer)
    }
    return [test for group in sorted(groups, key=places.__getitem__) for test in groups[group]]
