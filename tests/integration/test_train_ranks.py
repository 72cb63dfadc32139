"""Ranks that share the weights learn what one process learns; their checkpoints and models are anybody's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from train_ranks import (
    CASES,
    Values,
    across_nodes,
    build_model,
    every_case,
    go_on,
    kept_reference,
    learn,
    make_learner,
    on_ranks,
    overflow,
    resumed,
    served,
)
from transformers import AutoModelForCausalLM

from rstar2.train.sharding.ranks import ALONE

pytestmark = pytest.mark.integration


@dataclass(frozen=True, slots=True)
class Together:
    model: Path
    shared: Path
    two: list[dict[str, Any]]
    """What each of two ranks found."""
    alone: dict[str, tuple[Values, dict[str, Tensor]]]
    """What one process learnt in each case, and what it serves then."""


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, shared = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("shared")
    build_model(model, "qwen3")
    alone = {}
    for name, case in CASES.items():
        learner = make_learner(model, case, ALONE)
        values = learn(learner, model)
        alone[name] = (values, served(learner))
        if name == "full":
            (shared / "by-one").mkdir()
            learner.save(shared / "by-one")
    yield Together(model, shared, on_ranks(every_case, 2, model, shared), alone)
    torch.set_num_threads(num_threads)


def assert_same_values(found: Values, expected: Values, tolerance: float) -> None:
    for number, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        assert got.keys() == wanted.keys()
        for name, value in wanted.items():
            assert got[name] == pytest.approx(value, abs=tolerance, rel=tolerance), (number, name)


def assert_same_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=tolerance, rtol=0, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("case", [name for name in CASES if name != "bfloat16"])
def test_two_ranks_learn_what_one_process_learns(together: Together, case: str) -> None:
    expected_values, expected_served = together.alone[case]
    for found in together.two:
        values, weights, _, _ = found[case]
        assert_same_values(values, expected_values, 1e-5)
        assert_same_tensors(weights, expected_served, 1e-5)
    untrained = served(make_learner(together.model, CASES[case], ALONE))
    assert any(not torch.allclose(untrained[name], tensor, atol=1e-3) for name, tensor in expected_served.items())


def test_bfloat16_is_what_ranks_compute_with_and_float32_what_they_update(together: Together) -> None:
    expected_values, expected_served = together.alone["bfloat16"]
    values, weights, _, _ = together.two[0]["bfloat16"]
    assert values[0]["loss"] != pytest.approx(together.alone["full"][0][0]["loss"], abs=1e-5)
    # One process adds up its gradients in bfloat16, ranks theirs in float32.
    for got, wanted in zip(values, expected_values, strict=True):
        assert got["loss"] == pytest.approx(wanted["loss"], abs=0.02)
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert_same_tensors(weights, expected_served, 0.03)


def test_each_rank_holds_its_share_and_computes_again_only_where_asked(together: Together) -> None:
    num_whole = sum(tensor.numel() for tensor in together.alone["full"][1].values())
    held = [found["full"][2] for found in together.two]
    assert sum(held) == num_whole, "tied weights are held once"
    assert max(held) < 0.52 * num_whole
    plain, again = (together.two[0][name][3] for name in ("full", "recomputed"))
    assert plain < again < 2 * plain, "passes without gradient are not computed again"


def test_the_model_of_many_ranks_is_a_plain_model(together: Together) -> None:
    for case in ("full", "adapters", "bfloat16"):
        folder = together.shared / f"exported-{case}"
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        _, weights, _, _ = together.two[0][case]
        assert_same_tensors(dict(model.named_parameters()), weights, 0.0)
        assert model.config.architectures == ["Qwen3ForCausalLM"]
        assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_a_checkpoint_goes_from_one_to_two_and_from_two_to_one(together: Together) -> None:
    alone = resumed(together.model, ALONE, together.shared / "by-one")
    expected = go_on(alone)
    for found in together.two:
        values, weights = found["continued"]
        assert_same_values(values, expected, 1e-5)
        assert_same_tensors(weights, served(alone), 1e-5)
    back = resumed(together.model, ALONE, together.shared / "by-two")
    assert_same_values(go_on(back), expected, 1e-4)
    assert_same_tensors(served(back), served(alone), 1e-4)
    fresh = make_learner(together.model, CASES["full"], ALONE)
    assert go_on(fresh)[0]["entropy"] != pytest.approx(expected[0]["entropy"], abs=1e-3)


def test_all_ranks_say_the_same_of_their_weights_which_is_another_thing_of_others(together: Together) -> None:
    first, second = together.two
    assert first["weights"] == second["weights"]
    before, again, after = first["weights"]
    assert before == again != after
    assert first["loaded"] == second["loaded"], "each has a share of its own"
    by_one, by_two = first["loaded"]
    assert by_two == first["full_weights"] != by_one, "a checkpoint brings back the very weights that it was saved of"


def test_two_nodes_of_two_ranks(together: Together) -> None:
    found = on_ranks(across_nodes, 4, together.model, together.shared)
    expected_values, expected_served = together.alone["full"]
    num_whole = sum(tensor.numel() for tensor in expected_served.values())
    assert [rank["num_held"] for rank in found[:2]] == [rank["num_held"] for rank in found[2:]]
    assert sum(rank["num_held"] for rank in found) == 2 * num_whole
    expected_continued = go_on(resumed(together.model, ALONE, together.shared / "by-two"))
    for rank in found:
        assert_same_values(rank["learnt"][0], expected_values, 1e-5)
        assert_same_tensors(rank["learnt"][1], expected_served, 1e-5)
        assert_same_values(rank["continued"], expected_continued, 1e-5)
    back = resumed(together.model, ALONE, together.shared / "by-four")
    assert_same_tensors(served(back), expected_served, 1e-5)


def test_the_reference_is_written_once_and_held_by_all(together: Together, tmp_path: Path) -> None:
    expected = kept_reference(together.model, ALONE, tmp_path / "reference")
    assert expected[-1]["reference_kl"] > 1e-4
    by_two = kept_reference(together.model, ALONE, together.shared / "reference")
    for found in together.two:
        for values in (*found["reference"], by_two):
            assert_same_values(values, expected, 1e-5)


def test_a_gradient_that_is_no_number_is_skipped_by_all(together: Together) -> None:
    for values, is_unchanged in (*(found["overflow"] for found in together.two), overflow(together.model, ALONE)):
        assert values["grad_norm"] != values["grad_norm"] or values["grad_norm"] == float("inf")
        assert is_unchanged


def test_one_full_disk_is_told_to_all_ranks(together: Together) -> None:
    for found in together.two:
        assert "No space left on device" in found["full_disk"]
    assert not (together.shared / "never" / ".metadata").exists(), "without it nothing is loaded"
