"""The page of an elastic training run: the report of `sps report`, and of named runs only."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.processes import REPOSITORY, run_async
from shared_pathways_service import cli
from shared_pathways_service.elastic.run_ledger import LedgerReader, read_ledger
from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound
from shared_pathways_service.web import seldom_read, training_runs
from shared_pathways_service.web.training_runs import TrainingRuns

_SAMPLE = REPOSITORY / "tests" / "cli" / "sample_run"


class FakeClock:
    """Stands for the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_the_report_is_that_of_sps_report_and_read_again_as_it_grows(tmp_path: Path) -> None:
    run = str(tmp_path)
    ledger = tmp_path / "ledger.jsonl"
    shutil.copy(_SAMPLE / ledger.name, ledger)
    printed = CliRunner().invoke(cli._app("report"), ["report", run, "--json"], prog_name="sps")

    async def look() -> None:
        runs = TrainingRuns([run, run])
        assert runs.directories == (run,)
        told = await runs.report(run, "")
        version = told["version"]
        assert json.loads(json.dumps(told)) == {"version": version, **json.loads(printed.stdout)}
        assert told["losses"][-1].keys() == {"at", "step", "loss"}
        assert await runs.report(run, version) == {"version": version}
        last = json.loads(ledger.read_text().splitlines()[-1])
        with ledger.open("a") as file:
            file.write(json.dumps({**last, "kind": "elastic.run.done"}) + "\n")
        # (Not at once: reading may not take more than a part of the time.)
        while (await runs.report(run, version))["version"] == version:
            await asyncio.sleep(0.01)

    run_async(look())


def test_only_named_runs_with_a_ledger_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(seldom_read, "time", clock)
    read: list[str] = []

    def slow_read(directory: str) -> LedgerReader:
        clock.now += 5.0
        read.append(directory)
        return read_ledger(directory)

    monkeypatch.setattr(training_runs, "read_ledger", slow_read)

    async def look() -> None:
        runs = TrainingRuns([str(tmp_path)])
        with pytest.raises(ServiceNotFound, match=r"there is no ledger\.jsonl"):
            await runs.report(str(tmp_path), "")
        (tmp_path / "ledger.jsonl").write_text("no event\n")
        # A large ledger without an event is not read at each request either.
        for elapsed_s, reads in ((0.0, 1), (49.0, 1), (1.0, 2)):
            clock.now += elapsed_s
            with pytest.raises(ServiceNotFound, match="no events of elastic training"):
                await runs.report(str(tmp_path), "")
            assert len(read) == reads
        with pytest.raises(InvalidRequestError):
            await runs.report(str(_SAMPLE), "")

    run_async(look())
