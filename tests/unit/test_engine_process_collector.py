"""Looks for reference cycles: rare where we say so, in a process of their own so that no other test is changed."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

PROGRAM = """
import gc, weakref
from rstar2.engine.process.garbage_collection import collect_garbage_if_rare, look_rarely_for_cycles

class Node: pass

def cycle():
    node = Node()
    node.own = node
    return weakref.ref(node)

before = cycle()
gc.disable()
collect_garbage_if_rare()
assert before() is not None, "nobody asked for rare looks"
gc.enable()
look_rarely_for_cycles()
assert before() is None, "what is garbage is not kept for good"
assert gc.get_freeze_count() > 1000 and gc.get_threshold()[0] > 700
later = cycle()
assert later() is not None
collect_garbage_if_rare()
assert later() is None
"""


def test_looks_are_rare_where_asked_for_and_possible_at_any_time() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
