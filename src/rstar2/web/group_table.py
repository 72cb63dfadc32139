"""All groups of one step, read in full, since they are small compared with the traces."""

from pathlib import Path

from rstar2.records import Group
from rstar2.records.record_file import read_from


class GroupTable:
    """The groups of a file that may grow; the last of several decisions about a trace counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.num_bytes_read = 0
        self.groups: list[Group] = []
        self.place_of: dict[str, tuple[int, int]] = {}
        """The group's number, and the rollout's place in it, by trace id."""

    def refresh(self) -> None:
        if not self._path.is_file() or self._path.stat().st_size <= self._offset:
            return
        groups, offset = read_from(Group, self._path, self._offset)
        self.num_bytes_read += offset - self._offset
        self._offset = offset
        for group in groups:
            number = len(self.groups)
            self.groups.append(group)
            self.place_of.update({trace_id: (number, place) for place, trace_id in enumerate(group.trace_ids)})

    def find(self, trace_id: str) -> tuple[Group, int] | None:
        place = self.place_of.get(trace_id)
        return None if place is None else (self.groups[place[0]], place[1])
