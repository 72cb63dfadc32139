"""Runs programs in gVisor, which puts another kernel between them and the machine: slower, and stronger isolation.

Each execution is one `runsc` sandbox with a cold interpreter. Forks and rollbacks of notebooks replay their cells.
"""

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from rstar2.errors import UserError
from rstar2.sandbox.execution import MIB
from rstar2.sandbox.gvisor import bundle
from rstar2.sandbox.isolation import packages, rootfs
from rstar2.sandbox.isolation.confine import NUM_OPEN_FILES
from rstar2.sandbox.isolation.guarantees import SCRATCH_BYTES, Guarantee, describe_gvisor
from rstar2.sandbox.subprocess_executor import SubprocessExecutor
from rstar2.sandbox.unsafe import child

_DELETE_DEADLINE_S = 10.0


class GvisorLauncher:
    """Satisfies `Launcher`."""

    own_memory_bytes = 256 * MIB
    """The memory of gVisor's kernel and file server, and their share of the interpreter."""

    def __init__(self, added_packages: tuple[str, ...] = ()) -> None:
        found = shutil.which("runsc")
        if found is None:
            raise UserError(
                "--backend gvisor: there is no `runsc` on the PATH; install gVisor (Debian: `apt install runsc`)"
            )
        packages.check(added_packages)
        self._runsc = found
        self._view = rootfs.runtime_view(added_packages)
        self._home = Path(tempfile.mkdtemp(prefix="rstar2-gvisor-"))
        self._root = self._home / "rootfs"
        bundle.make_root(self._view, self._root)

    def command(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        folder.chmod(0o777)  # only we can enter the parent folder; in the sandbox the folder belongs to nobody
        for name in ("stdout", "stderr"):
            (folder / name).chmod(0o666)
        shutil.copy(child.__file__, folder / "child.py")
        place = self._home / folder.name
        place.mkdir()
        config = bundle.config(self._view, str(folder), str(self._root), SCRATCH_BYTES, NUM_OPEN_FILES)
        (place / "config.json").write_text(json.dumps(config))
        return [*self._base(), "run", "--bundle", str(place), folder.name], {"PATH": os.defpath}

    def signal_of(self, exit_code: int) -> int | None:
        """`runsc` ends like a shell. A program that ends itself with such a code is taken for killed."""
        return exit_code - 128 if exit_code > 128 else None

    async def after_end(self, folder: Path) -> None:
        deleting = await asyncio.create_subprocess_exec(
            *(*self._base(), "delete", "--force", folder.name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(_DELETE_DEADLINE_S):
                await deleting.wait()
        except TimeoutError:
            deleting.kill()
            await deleting.wait()
        shutil.rmtree(self._home / folder.name, ignore_errors=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            shutil.rmtree(self._home)

    def _base(self) -> list[str]:
        rootless = [] if os.geteuid() == 0 else ["--rootless"]
        return [self._runsc, f"--root={self._home / 'state'}", "--network=none", "--ignore-cgroups", *rootless]


class GvisorExecutor(SubprocessExecutor):
    """Satisfies `Executor`."""

    def __init__(
        self, added_packages: tuple[str, ...] = (), num_slots: int | None = None, max_queued: int = 65_536
    ) -> None:
        self._gvisor = GvisorLauncher(added_packages)
        super().__init__(self._gvisor, num_slots, max_queued)

    @property
    def guarantees(self) -> list[Guarantee]:
        return describe_gvisor()

    async def close(self) -> None:
        await super().close()
        self._gvisor.close()
