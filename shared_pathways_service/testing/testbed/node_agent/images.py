"""Maps image names to local commands, because the testbed has no images."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from shared_pathways_service.manifests.image_names import Image, is_ours
from shared_pathways_service.testing.google_images import PROXY_MODULE, SERVER_MODULE

__all__ = [
    "COMMAND_IMAGE",
    "MISSING_TAG",
    "PYTHON_IMAGE",
    "CannotPull",
    "ImageCommand",
    "command_of",
]

#: An image whose containers run their own `command`, as a program of this machine.
COMMAND_IMAGE = "testbed/command"
#: The same by the name that manifests have: programs find this project's interpreter as `python`.
PYTHON_IMAGE = "python"
#: The end of the tag of Python's images that have nothing else: a plain interpreter.
_PLAIN_TAG = "-slim"
#: ``testbed/exit:CODE`` logs and exits with that code, regardless of its arguments.
_EXIT_IMAGE = "testbed/exit"
#: A tag that no image has.
MISSING_TAG = "no-such-tag"

_GOOGLES = "cloud-tpu-v2-images/pathways/"
_SERVERS = "shared_pathways_service.servers"
_EXIT = "import sys; print('this image ends with', sys.argv[1]); sys.exit(int(sys.argv[1]))"


class CannotPull(Exception):  # noqa: N818 - named for the event
    """There is no such image."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageCommand:
    """A process to start.

    Attributes:
      argv: The program and its arguments.
      is_server: Whether it is a server of ours or a stand-in, which needs an address to bind.
      knows_extensions: Whether the image would know this project's own variables.
      is_plain: Whether nothing of this project is in the image.
    """

    argv: tuple[str, ...]
    is_server: bool = False
    knows_extensions: bool = False
    is_plain: bool = False


def command_of(image: str, command: Sequence[str], arguments: Sequence[str]) -> ImageCommand:
    """Returns the command of a container, which may replace that of its image.

    This project's servers run as they are, Google's as the stand-ins of
    `shared_pathways_service.testing.google_images`; see also `COMMAND_IMAGE`.

    Raises:
      CannotPull: There is no such image.
    """
    parsed = Image.parse(image)
    if parsed.tag == MISSING_TAG:
        raise CannotPull(image)
    if parsed.repository == _EXIT_IMAGE:
        return ImageCommand(argv=(sys.executable, "-c", _EXIT, parsed.tag or "0"))
    if parsed.repository == PYTHON_IMAGE and parsed.tag.endswith(_PLAIN_TAG):
        return ImageCommand(argv=_plain_python([*command, *arguments]), is_plain=True)
    if parsed.repository == PYTHON_IMAGE:
        return ImageCommand(argv=(*command, *arguments) or ("python3",))
    ours = is_ours(image)
    if not ours and _GOOGLES not in parsed.repository and parsed.repository != COMMAND_IMAGE:
        raise CannotPull(image)
    if command:
        return ImageCommand(argv=(*command, *arguments))
    if parsed.repository == COMMAND_IMAGE:
        raise CannotPull(f"{image}, which has no command of its own")
    name = parsed.repository.rpartition("/")[2]
    module = _our_module(name, arguments) if ours else _googles_module(name)
    return ImageCommand(
        argv=(sys.executable, "-P", "-m", module, *arguments),
        is_server=True,
        knows_extensions=ours,
    )


def _plain_python(words: Sequence[str]) -> tuple[str, ...]:
    """Returns a command with this machine's interpreter, but none of the packages that it has."""
    program, *rest = words or ("python3",)
    if program not in ("python", "python3"):
        return tuple(words)
    # (That of a virtual environment finds the environment's packages.)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return (str(Path(sys.base_exec_prefix) / "bin" / version), "-S", *rest)


def _googles_module(name: str) -> str:
    modules = {"proxy_server": PROXY_MODULE, "server": SERVER_MODULE}
    if name not in modules:
        raise CannotPull(name)
    return modules[name]


def _our_module(name: str, arguments: Sequence[str]) -> str:
    if name == "proxy_server":
        return f"{_SERVERS}.proxy"
    if name != "server":
        raise CannotPull(name)
    is_manager = "--node_type=resource_manager" in arguments
    return f"{_SERVERS}.{'resource_manager' if is_manager else 'worker'}"
