"""Patches of Go modules, applied before they are built, with their reasons."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

from shared_pathways_service.testing.testbed.errors import TestbedUnavailable

__all__ = ["ENDED_SUFFIX", "ENTER_VARIABLE", "PATCHES", "Patch"]

#: The suffix of the file that shows KWOK that a log's container has ended.
ENDED_SUFFIX = ".ended"
#: An Exec's variable with the program that enters the container.
ENTER_VARIABLE = "TESTBED_ENTER"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patch:
    """Replacements of texts in files of a module.

    Attributes:
      module: The module's path.
      changes: By the file's path: each text, which occurs once, and its replacement.
    """

    module: str
    changes: Mapping[str, tuple[tuple[str, str], ...]]

    def apply(self, source: Path, copy: Path) -> Path:
        """Creates a patched copy of a module's files, and returns its path.

        Raises:
          TestbedUnavailable: The patch does not apply to this version of the module.
        """
        # The files of Go's cache are read-only, and copies with their modes would be too.
        shutil.copytree(source, copy, copy_function=shutil.copyfile)
        for path, changes in self.changes.items():
            file = copy / path
            text = file.read_text(encoding="utf-8")
            for old, new in changes:
                if text.count(old) != 1:
                    raise TestbedUnavailable(f"{self.module}: {path} has not once {old!r}")
                text = text.replace(old, new)
            file.write_text(text, encoding="utf-8")
        return copy


_STATUS = """
\tif _, err := os.Stat(containerID + "SUFFIX"); err == nil {
\t\tended := runtimeapi.ContainerState_CONTAINER_EXITED
\t\tstatus := &runtimeapi.ContainerStatus{State: ended}
\t\treturn &runtimeapi.ContainerStatusResponse{Status: status}, nil
\t}
\treturn nil, errUnavailable""".replace("SUFFIX", ENDED_SUFFIX)

_ENTERED = """
\tfor _, env := range execTarget.Local.Envs {
\t\tif env.Name == "VARIABLE" {
\t\t\tcmd = append([]string{env.Value}, cmd...)
\t\t}
\t}

\t// Set the user.
""".replace("VARIABLE", ENTER_VARIABLE)

_RUN = "\terr := utilsexec.Exec(ctx, cmd[0], cmd[1:]...)\n"
_EXIT_CODE = """
\tvar ended *osexec.ExitError
\tif errors.As(err, &ended) {
\t\tcode := ended.ExitCode()
\t\tif status, ok := ended.Sys().(syscall.WaitStatus); ok && status.Signaled() {
\t\t\tcode = 128 + int(status.Signal())
\t\t}
\t\treturn exitcode.CodeExitError{Err: err, Code: code}
\t}
"""
_IMPORTS = """import (
\t"errors"
\tosexec "os/exec"
\t"syscall"

\texitcode "k8s.io/utils/exec"

"""

#: By the name of the directory in ``modules``.
PATCHES = {
    "kwok": Patch(
        module="sigs.k8s.io/kwok",
        changes={
            # KWOK does not know when a container ends, so a followed log would never end.
            "pkg/kwok/server/debugging_logs.go": (
                ('logsFile, "", opts', "logsFile, logsFile, opts"),
                ("\treturn nil, errUnavailable", _STATUS.removeprefix("\n")),
                ("import (\n", 'import (\n\t"os"\n'),
            ),
            # It runs commands outside the containers, and does not report their exit codes.
            "pkg/kwok/server/debugging_exec.go": (
                ("\n\t// Set the user.\n", _ENTERED),
                (_RUN, _RUN + _EXIT_CODE.removeprefix("\n")),
                ("import (\n", _IMPORTS),
            ),
            # A command that reads to the end would never see it.
            "pkg/utils/exec/exec.go": (
                (
                    "io.Copy(inPipe, opt.In)\n",
                    "io.Copy(inPipe, opt.In)\n\t\t\t\t_ = inPipe.Close()\n",
                ),
            ),
        },
    ),
}
