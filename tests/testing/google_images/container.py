"""``python -m … IMAGE NAME [VARIABLE=VALUE …] -- FLAG …``: runs an image in its own place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

__all__ = ["PROGRAMS", "arguments", "program", "remove"]

#: Programs that run images, the preferred one first.
PROGRAMS = ("docker", "podman")


def program() -> str | None:
    """Returns the program that runs images here; None: there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def arguments(words: list[str]) -> list[str]:
    """Returns the program's arguments for the command line above."""
    image, name, *others = words
    settings, flags = others[: others.index("--")], others[others.index("--") + 1 :]
    variables = [word for setting in settings for word in ("--env", setting)]
    return ["run", "--rm", "--name", name, "--network=host", *variables, image, *flags]


def remove(name: str) -> None:
    """Removes a container that may have ended."""
    if found := program():
        subprocess.run([found, "rm", "--force", name], capture_output=True, check=False)


if __name__ == "__main__":
    found = program()
    assert found, f"none of {PROGRAMS} is here"
    os.execv(found, [found, *arguments(sys.argv[1:])])
