"""The program of a link's far end: what is in it, and that it needs only Python."""

from __future__ import annotations

import asyncio
import io
import sys
import zipfile
from pathlib import Path

from shared_pathways_service.homes.kubernetes.link_archive import link_archive
from tests.tunnel.link.far_programs import far_program
from tests.tunnel.link.near_ends import a_near_end
from tests.tunnel.link.rigs import echo, run

PACKAGE = "shared_pathways_service/"
LINK = f"{PACKAGE}tunnel/link/"
#: Of a ConfigMap, in bytes; its binary data is a third longer.
LIMIT = 1 << 20


def contents() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(link_archive())) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_it_has_the_far_end_and_nothing_else_of_the_package() -> None:
    files = contents()
    others = {name for name in files if not name.startswith(LINK)}
    packages = {f"{PACKAGE}{name}__init__.py" for name in ("", "patience/", "runtime/", "tunnel/")}
    used = {f"{PACKAGE}runtime/{name}.py" for name in ("allocator", "listeners")}
    used.add(f"{PACKAGE}tunnel/liveness.py")
    used |= {f"{PACKAGE}patience/{n}.py" for n in ("factor", "slowness", "timeouts", "within")}
    assert others == {"__main__.py", *used, *packages}
    assert {files[name] for name in packages} == {b""}
    assert f"{LINK}far_end.py" in files
    assert not [name for name in files if name.startswith(f"{LINK}near_")]


def test_it_forwards_with_nothing_but_python(tmp_path: Path) -> None:
    program, empty = tmp_path / "link.pyz", tmp_path / "empty"
    program.write_bytes(link_archive())
    empty.mkdir()

    async def work() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        command = (sys.executable, "-I", "-S", str(program))
        with far_program(tmp_path, target, command=command, cwd=empty) as far:
            port = await asyncio.to_thread(lambda: far.port)
            async with a_near_end(port) as rig:
                reader, writer = await rig.connect()
                writer.write(b"hello")
                assert await reader.readexactly(5) == b"hello"
                writer.close()
        server.close()

    run(work)


def test_it_is_always_the_same_and_fits_a_config_map() -> None:
    first = link_archive()
    link_archive.cache_clear()
    assert link_archive() == first
    assert len(first) * 4 / 3 < LIMIT / 4
