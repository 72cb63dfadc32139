"""Collects all mistakes in some data into one report, so that a user corrects them at once and not one at each
attempt."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rstar2.errors import UserError

MAX_SHOWN = 20
"""How many mistakes of one set are listed. If there are many more, they have one cause, which the first ones show."""

OnMistake = Callable[[UserError], None]
"""Called by a reader for a row that cannot be used. It raises, or notes the error, and then the row is left out."""


def raise_it(error: UserError) -> None:
    raise error


class DataMistakesError(UserError):
    """An error with one sentence for each mistake."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.sentences = tuple(dict.fromkeys(sentences))
        super().__init__(listed("the data", self.sentences))


class Mistakes:
    """Notes mistakes, in the order in which they are found."""

    def __init__(self) -> None:
        self._sentences: list[str] = []

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(self._sentences)

    def note(self, error: UserError) -> None:
        self._sentences += error.sentences if isinstance(error, DataMistakesError) else [str(error)]

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Catches and notes a UserError that ends the block."""
        try:
            yield
        except UserError as error:
            self.note(error)

    def raise_any(self, set_name: str | None = None) -> None:
        """Raises one error for all noted mistakes, if any. Of a single set only the first are listed, and the others
        counted."""
        if not self._sentences:
            return
        num_more = len(self._sentences) - MAX_SHOWN
        if set_name is None or num_more <= 0:
            raise DataMistakesError(self._sentences)
        more = f"data.{set_name}: {num_more:,} more mistakes, not listed"
        raise DataMistakesError([*self._sentences[:MAX_SHOWN], more])


def listed(where: str, sentences: Sequence[str]) -> str:
    """The text of the mistakes: a single one as it is, several under a heading, one on each line."""
    if len(sentences) == 1:
        return sentences[0]
    return f"{where} has {len(sentences)} mistakes:\n" + "\n".join(f"  {sentence}" for sentence in sentences)
