"""Shows the rows that a run would use to their environment before the run, so that every bad one is named at once."""

from collections.abc import Sequence

from rstar2.config import DataSet, EnvironmentSection, Recipe
from rstar2.data.load import row_places
from rstar2.data.mistakes import Mistakes
from rstar2.environments.row_check import check_rows
from rstar2.errors import UserError
from rstar2.records import Problem


class RowChecker:
    """Shows the sets of a recipe to their environments."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.notes: list[str] = []
        """One note for each set of which not all rows were checked."""

    def check(self, name: str, problems: Sequence[Problem]) -> None:
        """Checks a set. UserError names the file and the line of each row that its environment cannot use."""
        if name not in self._recipe.data:
            return  # a benchmark of the catalog: its rows were read when it was loaded
        section = self._recipe.environment_of(name)
        num_checked = require_usable_rows(name, self._recipe.data[name], problems, section, self._recipe)
        if num_checked < len(problems):
            self.notes.append(
                f"data.{name}: {num_checked:,} of its {len(problems):,} rows were checked with {section.source}; "
                "the run checks the others when it starts"
            )


def require_usable_rows(
    name: str, spec: DataSet, problems: Sequence[Problem], section: EnvironmentSection, recipe: Recipe
) -> int:
    """Checks rows until time runs out, and returns how many were checked. UserError names the file and the line of each
    row that the environment cannot use."""
    if not problems or not problems[0].row:
        return len(problems)  # mathematics: the row was read when it was loaded
    found = check_rows(section, recipe, problems)
    if found.mistakes:
        places, mistakes = row_places(name, spec), Mistakes()
        for problem_id, sentence in found.mistakes.items():
            where = places.get(problem_id, f"data.{name}, problem {problem_id}")
            mistakes.note(UserError(f"{where}: {sentence}"))
        mistakes.raise_any(name)
    return found.num_checked
