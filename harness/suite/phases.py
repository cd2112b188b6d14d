"""The parts of a run: which layers run together, and with how many processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

__all__ = ["Form", "Phase", "PlannedTest", "form_of", "tests_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedTest:
    """A test that was collected.

    Attributes:
      layer: The marker of its layer.
      heavy: Whether it takes all of the machine, and so runs alone.
    """

    layer: str
    heavy: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A run of pytest.

    Attributes:
      name: Of its files, and in what is printed.
      layers: Whose tests it runs.
      heavy: Whether it runs the heavy tests of these layers, or all others.
      workers: Processes that run tests at once.
    """

    name: str
    layers: Sequence[str]
    heavy: bool = False
    workers: int

    @property
    def markers(self) -> str:
        """The expression that selects its tests."""
        return f"({' or '.join(self.layers)}) and {'heavy' if self.heavy else 'not heavy'}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """A whole run.

    Attributes:
      phases: In their order.
      commands: What runs after them, and fails the run if it fails.
    """

    phases: Sequence[Phase]
    commands: Sequence[Sequence[str]] = ()


def form_of(*, everything: bool, cores: int) -> Form:
    """Returns what `scripts/test` runs, or `scripts/test --all`.

    Tests of layer unit compute; those of layer local wait for a part of their time, and those of
    layer testbed for most of it.
    """
    local = Phase(name="local", layers=["local"], workers=cores + cores // 2)
    phases = [Phase(name="unit", layers=["unit"], workers=cores), local]
    if everything:
        phases += [
            Phase(name="testbed", layers=["testbed"], workers=2 * cores),
            Phase(name="long", layers=["long"], workers=cores),
        ]
    layers = [layer for phase in phases for layer in phase.layers]
    heavy = Phase(name="heavy", layers=layers, heavy=True, workers=1)
    commands = [["scripts/compat", "--short"]] if everything else []
    return Form(phases=[*phases, heavy], commands=commands)


def tests_of(phase: Phase, plan: Mapping[str, PlannedTest]) -> list[str]:
    """Returns the tests of a phase, in the order of their collection."""
    return [
        test
        for test, planned in plan.items()
        if planned.layer in phase.layers and planned.heavy == phase.heavy
    ]
