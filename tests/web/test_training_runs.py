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
from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound
from shared_pathways_service.web.training_runs import TrainingRuns

_SAMPLE = REPOSITORY / "tests" / "cli" / "sample_run"


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


def test_only_named_runs_with_a_ledger_are_read(tmp_path: Path) -> None:
    async def look() -> None:
        runs = TrainingRuns([str(tmp_path)])
        with pytest.raises(ServiceNotFound, match=r"there is no ledger\.jsonl"):
            await runs.report(str(tmp_path), "")
        (tmp_path / "ledger.jsonl").write_text("no event\n")
        with pytest.raises(ServiceNotFound, match="no events of elastic training"):
            await runs.report(str(tmp_path), "")
        with pytest.raises(InvalidRequestError):
            await runs.report(str(_SAMPLE), "")

    run_async(look())
