"""The picture is well-formed, shows every policy, and stays small."""

from xml.etree import ElementTree

import pytest

from rstar2.rollout.policies import make_policy
from rstar2.rollout.simulator import HARDWARE, QWEN3_14B, Fleet, generate, lower_bound_s, roofline, simulate
from rstar2.rollout.simulator.chart import draw

pytestmark = pytest.mark.unit

SVG = "{http://www.w3.org/2000/svg}"


def test_the_chart_is_one_self_contained_svg() -> None:
    model = roofline(HARDWARE["mi300x"], QWEN3_14B, 0.5)
    workload = generate("default", seed=0, num_problems=8, num_rollouts_each=8)
    results = {
        name: simulate(workload, make_policy(name), Fleet(model, 2), keeps_spans=True)
        for name in ("static", "kv-aware")
    }
    picture = draw("a <title> & more", results, model.num_cache_tokens, lower_bound_s(workload, model, 2))
    assert len(picture) < 200_000
    root = ElementTree.fromstring(picture)
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert {"a <title> & more", "static", "kv-aware"} <= set(texts)
    assert f"{results['static'].makespan_s:.0f} s" in texts
    assert len(list(root.iter(f"{SVG}polyline"))) == 2
    assert not list(root.iter(f"{SVG}script")) and "href" not in picture
