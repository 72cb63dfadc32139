"""Assigns uids (and gids) to programs: ids that no person has, in blocks of which each service leases one.

Linux counts processes by uid, so two services must not share one. A service leases its block by a lock on a file, which
ends with the process. Services whose files are in different containers cannot see each other's locks; they take
different blocks because the choice is random. Inside its block a service draws ids at random too: a program that could
count them would learn how many slots others have used up.
"""

import fcntl
import os
import random
import stat
import tempfile
from collections import deque
from contextlib import suppress
from functools import cache
from pathlib import Path

FIRST_UID, NUM_BLOCKS, NUM_UIDS_PER_BLOCK = 0x4000_0000, 0x3FFF, 0x10000
LAST_UID = FIRST_UID + NUM_BLOCKS * NUM_UIDS_PER_BLOCK - 1
_NUM_TRIES = 64
_NUM_RECENT = 4096
_random = random.SystemRandom()


def uid_of(block: int, number: int) -> int:
    return FIRST_UID + block * NUM_UIDS_PER_BLOCK + number


@cache
def leased_block() -> int:
    """The block that this process leases until it exits."""
    folder = _lock_folder()
    for _ in range(_NUM_TRIES if folder is not None else 0):
        block = _random.randrange(NUM_BLOCKS)
        if folder is not None and lock_block(folder, block):
            return block
    return _random.randrange(NUM_BLOCKS)


def lock_block(folder: Path, block: int) -> bool:
    """False if another process has it. The descriptor stays open, so the lock ends with the process."""
    fd = os.open(folder / str(block), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return False
    return True


def _lock_folder() -> Path | None:
    """The folder for lock files, which only this user can change; None if none can be made."""
    for parent in (Path("/run"), Path(tempfile.gettempdir())):
        with suppress(OSError):
            folder = parent / "rstar2-sandbox-uids"
            folder.mkdir(mode=0o700, exist_ok=True)
            facts = folder.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022:
                return folder
    return None


class UidNumbers:
    """Draws random numbers within a block, excluding recent ones: killed processes may take a while to exit, and Linux
    counts them against their uid."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self._recent: deque[int] = deque(maxlen=_NUM_RECENT)

    def draw(self) -> int:
        while (number := _random.choice(self._numbers)) in self._recent:
            pass
        self._recent.append(number)
        return number


STATELESS_NUMBERS = UidNumbers(range(NUM_UIDS_PER_BLOCK // 2))
SESSION_NUMBERS = UidNumbers(range(NUM_UIDS_PER_BLOCK // 2, NUM_UIDS_PER_BLOCK))
"""All executors of this process share both: two slots with the same uid would share its process limit."""
