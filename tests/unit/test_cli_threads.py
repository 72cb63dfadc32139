"""What a process that computes tells OpenMP, before torch is loaded and in its children."""

import os
import subprocess
import sys

import pytest

from rstar2.cli.threads import SPIN_COUNT, bound_spinning, check_threads
from rstar2.errors import UserError

pytestmark = pytest.mark.unit

CHILD = """
import os, subprocess, sys
from rstar2.cli import main
assert "torch" not in sys.modules
main.app = lambda: print(subprocess.run(
    [sys.executable, "-c", "import os; print(os.environ.get('GOMP_SPINCOUNT'))"], capture_output=True, text=True
).stdout, end="")
main.main()
"""


@pytest.mark.parametrize(
    ("own", "seen"), [({}, str(SPIN_COUNT)), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_children_of_every_verb_spin_briefly_unless_the_user_says_otherwise(own: dict[str, str], seen: str) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {key: value for key, value in os.environ.items() if key not in names} | own
    ran = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == seen


def test_what_is_set_already_is_kept() -> None:
    environment = {"GOMP_SPINCOUNT": "7"}
    bound_spinning(environment)
    assert environment == {"GOMP_SPINCOUNT": "7"}


def test_more_threads_than_cores_is_a_sentence() -> None:
    check_threads(1)
    with pytest.raises(UserError, match="--threads of 99999 is more than the"):
        check_threads(99999)
