"""What is changed in a module before it is built, and why."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from shared_pathways_service.testing.testbed.errors import TestbedUnavailable

__all__ = ["ENDED_SUFFIX", "PATCHES", "Patch"]

#: A file of a log's name and this tells KWOK that the log's container has ended.
ENDED_SUFFIX = ".ended"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patch:
    """Texts put in the place of others in one file of a module.

    Attributes:
      module: The module's path.
      file: In the module.
      changes: Each text, which is there once, and what stands in its place.
    """

    module: str
    file: str
    changes: tuple[tuple[str, str], ...]

    def apply(self, source: Path, copy: Path) -> Path:
        """Makes a changed copy of a module's files, and returns where it is.

        Raises:
          TestbedUnavailable: The module is not the one that the patch was made for.
        """
        # The files of Go's cache cannot be written, nor could copies with their modes.
        shutil.copytree(source, copy, copy_function=shutil.copyfile)
        file = copy / self.file
        text = file.read_text(encoding="utf-8")
        for old, new in self.changes:
            if text.count(old) != 1:
                raise TestbedUnavailable(f"{self.module}: {self.file} has not once {old!r}")
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

#: By the name of the directory in ``modules``.
PATCHES = {
    # KWOK does not know when a container ends: who follows a log would never see the log's end.
    "kwok": Patch(
        module="sigs.k8s.io/kwok",
        file="pkg/kwok/server/debugging_logs.go",
        changes=(
            ('logsFile, "", opts', "logsFile, logsFile, opts"),
            ("\treturn nil, errUnavailable", _STATUS.removeprefix("\n")),
            ("import (\n", 'import (\n\t"os"\n'),
        ),
    ),
}
