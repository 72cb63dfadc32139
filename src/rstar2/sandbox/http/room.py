"""A bound in bytes on what is held for a slow reader: back-pressure."""

import asyncio
from collections import deque


class Room:
    """A budget of held or reserved bytes. Callers wait for free bytes in order."""

    def __init__(self, num_bytes: int) -> None:
        self._free = self._size = num_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def wait_for(self, num_bytes: int) -> int:
        """Wait until the bytes are free and reserve them; a larger amount waits for the whole budget. Returns how many
        bytes are reserved: the caller gives back as many."""
        num_bytes = min(num_bytes, self._size)
        if not self._waiting and num_bytes <= self._free:
            self._free -= num_bytes
            return num_bytes
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back(num_bytes)
            raise
        return num_bytes

    def take(self, num_bytes: int) -> None:
        """Count existing bytes, even beyond the budget."""
        self._free -= num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Free bytes that were reserved or taken, all at once or in parts."""
        self._free += num_bytes
        while self._waiting and self._waiting[0][0] <= self._free:
            wanted, granted = self._waiting.popleft()
            if not granted.done():
                self._free -= wanted
                granted.set_result(None)
