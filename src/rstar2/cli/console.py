"""The terminal as the commands write to it: with colours of their own, and no control codes of anybody else's."""

from collections.abc import Iterable

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from rstar2.cli.output import printable


class Console(rich.console.Console):
    """Rich's own passes escape codes in texts on. Models, programs, data sets and servers write the texts that are
    printed here, so a terminal gets theirs in a visible form."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text, self.file), style)
