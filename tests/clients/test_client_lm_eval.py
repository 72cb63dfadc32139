"""lm-eval's local-completions, unmodified: log-likelihoods equal those of transformers on the same weights."""

from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.clients

PAIRS = [
    ("Blue 17", " green 9 red"),
    ("Zurich, 8 km", " north of 21."),
    ("x = y", " * z ** 2"),
    ("Who", " are you, 7?"),
]


def instances(kind: str, arguments: list[Any]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, argument, number) for number, argument in enumerate(arguments)]


@pytest.fixture(scope="module")
def client(served: Any) -> Any:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    return LocalCompletionsAPI(
        model="tiny",
        base_url=f"{served.root}/v1/completions",
        tokenizer=str(served.folder),
        tokenizer_backend="huggingface",
        num_concurrent=2,
        max_retries=1,
        max_length=2048,
    )


def test_log_likelihoods_are_those_of_transformers(served: Any, client: Any) -> None:
    from lm_eval.models.huggingface import HFLM

    here = client.loglikelihood(instances("loglikelihood", PAIRS))
    there = HFLM(str(served.folder), device="cpu", dtype="float32", batch_size=1).loglikelihood(
        instances("loglikelihood", PAIRS)
    )
    assert [value for value, _ in here] == pytest.approx([value for value, _ in there], abs=1e-3)
    assert [is_greedy for _, is_greedy in here] == [is_greedy for _, is_greedy in there]


def test_greedy_texts_are_those_of_transformers(served: Any, client: Any) -> None:
    from lm_eval.models.huggingface import HFLM

    wanted = [(context, {"until": ["zzz"], "max_gen_toks": 12}) for context, _ in PAIRS]
    there = HFLM(str(served.folder), device="cpu", dtype="float32", batch_size=1)
    assert client.generate_until(instances("generate_until", wanted)) == there.generate_until(
        instances("generate_until", wanted)
    )
