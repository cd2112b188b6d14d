"""The images, really built, and their entry points run as pods are.

Runs where buildah and mmdebstrap are (`apt-get install buildah mmdebstrap`) and this is root, which
mounts want: elsewhere there is nothing to build with. It needs a Debian mirror and a package index.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import pytest

from harness.processes import DEADLINE_S, KIND, REPOSITORY
from harness.proxy.raw import RawClient, single
from tests.image_tags import default_tag

pytestmark = [
    pytest.mark.skipif(
        shutil.which("buildah") is None or shutil.which("mmdebstrap") is None or os.getuid() != 0,
        reason="building images takes buildah, mmdebstrap and root",
    ),
    pytest.mark.timeout(3600),
]

#: Bytes of an image at most: 350 MB are jaxlib's, 165 MB numpy's and scipy's.
LARGEST = 1_000_000_000
FOUR = np.arange(4, dtype=np.float32)
#: Starts a container's process 1 as Kubernetes does with `readOnlyRootFilesystem`, `runAsNonRoot`,
#: `allowPrivilegeEscalation: false`, all capabilities dropped, and an `emptyDir` at /tmp.
#: A change of user clears the signal that `unshare --kill-child` set, hence `--pdeathsig=keep`.
START = """
root=$1; shift
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
exec chroot "$root" /usr/bin/setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs \
  --bounding-set=-all --inh-caps=-all --pdeathsig=keep -- "$@"
"""


class Images:
    """Both images, in a store of their own; use as a context manager."""

    def __init__(self, store: Path) -> None:
        self._buildah = [
            *("buildah", "--storage-driver=vfs"),
            *(f"--root={store / 'storage'}", f"--runroot={store / 'run'}"),
        ]
        self._containers: list[str] = []
        build = [str(REPOSITORY / "scripts" / "images"), "--base", "debian", "--root", str(store)]
        self.said = _output(build, {"STORAGE_DRIVER": "vfs"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for container in self._containers:
            _output([*self._buildah, "rm", container])

    def inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            _output([*self._buildah, "inspect", "--type=image", _full(name)])
        )
        return found

    def size(self, name: str) -> int:
        listed = json.loads(_output([*self._buildah, "images", "--json", _full(name)]))
        value, unit = str(listed[0]["size"]).split()
        return int(float(value) * {"MB": 1e6, "GB": 1e9}[unit])

    def unpack(self, name: str) -> Path:
        """Returns the root file system of a new container."""
        container = _output([*self._buildah, "from", "--pull=false", _full(name)]).strip()
        self._containers.append(container)
        return Path(_output([*self._buildah, "mount", container]).strip())


def _full(name: str) -> str:
    return f"localhost/shared-pathways-service/{name}:{default_tag()}"


def _output(command: list[str], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    """Builds them once."""
    with tempfile.TemporaryDirectory(prefix="sps-images-") as store, Images(Path(store)) as built:
        yield built


class Container:
    """A process from an image; use as a context manager."""

    def __init__(self, images: Images, image: str, *flags: str) -> None:
        self.root = images.unpack(image)
        config = images.inspect(image)["OCIv1"]["config"]
        self.user = config["User"]
        words = [*config["Entrypoint"], *flags]
        read_fd, write_fd = os.pipe()
        with os.fdopen(read_fd, "rb") as ready, os.fdopen(write_fd, "wb") as told:
            inside = ["/usr/bin/env", "-i", *config["Env"], *words, f"--ready_fd={told.fileno()}"]
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the exit
            self._process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                    *("bash", "-ec", START, "_", str(self.root), *inside),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(told.fileno(),),
            )
            told.close()
            line = b""
            if select.select([ready], [], [], DEADLINE_S)[0]:
                line = ready.readline()
            self.ready: dict[str, Any] = json.loads(line or b"{}")

    def __enter__(self) -> Self:
        if not self.ready:
            log = self.log
            self.close()
            raise AssertionError(log)
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills it, as the end of a PID namespace kills all that is in it."""
        inside = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        self._log.close()
        _, left = psutil.wait_procs(inside, timeout=DEADLINE_S)
        assert not left, f"still there: {left}"

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    @property
    def inside(self) -> Path:
        """What the kernel says of the process."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return Path("/proc") / children.read_text().split()[0]


def as_pods_are(container: Container) -> None:
    """The process is what restricted pod security asks for, and its root cannot be written."""
    status = dict(
        line.split(":", 1) for line in (container.inside / "status").read_text().splitlines()
    )
    assert container.user == "1000:1000"
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"1000"}
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {0}
    assert status["NoNewPrivs"].strip() == "1"
    mounts = [line.split() for line in (container.inside / "mounts").read_text().splitlines()]
    [options] = [fields[3] for fields in mounts if fields[1] == "/"][-1:]
    assert "ro" in options.split(",")


def test_the_servers_run_as_pods_do_and_compute(images: Images) -> None:
    with contextlib.ExitStack() as stack:

        def run(image: str, *flags: str) -> Container:
            return stack.enter_context(Container(images, image, *flags))

        manager = run(
            "server",
            "--node_type=resource_manager",
            "--server_port=0",
            f"--instance_type={KIND}",
            "--instance_count=1",
        )
        address = f"127.0.0.1:{manager.ready['port']}"
        worker = run(
            "server",
            f"--resource_manager_address={address}",
            "--server_port=0",
            "--slice_id=slice-0",
            f"--instance_type={KIND}",
            "--host_index=0",
        )
        proxy = run(
            "proxy_server",
            f"--resource_manager_address={address}",
            "--server_port=0",
            f"--virtual_slices={KIND}",
            "--tenant_name=ada",
        )
        for container in (manager, worker, proxy):
            as_pods_are(container)
        client = stack.enter_context(RawClient(f"127.0.0.1:{proxy.ready['port']}"))
        np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


@pytest.mark.parametrize("name", ["server", "proxy_server"])
def test_an_image_has_what_servers_need_and_no_more(images: Images, name: str) -> None:
    root = images.unpack(name)
    [packages] = (root / "opt/pathways/lib").glob("python3*/site-packages")
    assert (packages / "shared_pathways_service/servers").is_dir()
    assert (packages / "cloudpickle").is_dir()
    assert not (packages / "shared_pathways_service/testing").exists()
    assert not list(packages.glob("pip*"))
    assert not [path for path in packages.glob("*/**/tests") if path.parts[-2] in "numpy scipy"]
    assert not (root / "src").exists()
    assert images.size(name) < LARGEST
    assert f"{name}:{default_tag()}" in images.said
