"""TRL's clients of a vLLM server, unmodified: generation, scores, control, LoRA sync, and its rollout worker."""

from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

PROMPTS = [[5, 9, 300, 12], [40, 41, 42, 43, 44]]


@pytest.fixture(scope="module")
def client(served: Any) -> Any:
    from trl.generation.vllm_client import VLLMClient

    return VLLMClient(base_url=served.root)


@pytest.fixture
def control(served: Any) -> Any:
    from trl.experimental.async_grpo.vllm_client import VLLMClient

    return VLLMClient(served.root)


def write_adapter(base: Path, target: Path, seed: int) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_()
    adapted.save_pretrained(target)


def test_generation_has_ids_and_log_probabilities(client: Any) -> None:
    made = client.generate(PROMPTS, n=2, max_tokens=6, generation_kwargs={"seed": 1})
    assert made["prompt_ids"] == PROMPTS and [len(ids) for ids in made["completion_ids"]] == [6] * 4
    assert [[each[0] for each in ids] for ids in made["logprob_token_ids"]] == made["completion_ids"]
    top = client.generate(PROMPTS, max_tokens=3, logprobs=4, temperature=0.7)
    assert all(4 <= len(each) <= 5 for values in top["logprobs"] for each in values)


def test_chat_has_the_ids_of_the_prompt(client: Any) -> None:
    made = client.chat([[{"role": "user", "content": "one two"}]], max_tokens=5)
    assert len(made["prompt_ids"][0]) > 2 and len(made["completion_ids"][0]) == 5


def test_scores_of_given_sequences_are_the_models_own(client: Any, served: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    scored = client.get_sequence_logprobs(PROMPTS, [2, 3], top_logprobs=5)
    model = AutoModelForCausalLM.from_pretrained(served.folder, dtype=torch.float32)
    for ids, start, actual in zip(PROMPTS, [2, 3], scored["actual_logprobs"], strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        wanted = [float(expected[at - 1, ids[at]]) for at in range(start, len(ids))]
        known = [(value[0], want) for value, want in zip(actual, wanted, strict=True)]
        assert all(value == pytest.approx(want, abs=1e-3) for value, want in known)


def test_control_pauses_resumes_and_drops_prefixes(client: Any, control: Any) -> None:
    client.reset_prefix_cache()
    control.wait_for_server_ready()
    assert control.get_max_model_len() == 2048 and control.get_dtype() == "torch.float32"
    control.pause()
    control.resume()
    assert client.get_world_size() == 1
    with pytest.raises(RuntimeError, match="no weight-transfer engine"):
        client.init_communicator(device="cuda")


def test_lora_adapters_are_synced_by_name(control: Any, served: Any, tmp_path: Path) -> None:
    import requests
    from transformers import AutoModelForCausalLM

    def greedy(model: str) -> Any:
        body = {"model": model, "prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, "return_token_ids": True}
        return requests.post(f"{served.root}/v1/completions", json=body, timeout=60).json()["choices"][0]["token_ids"]

    base = greedy("tiny")
    for version in (1, 2):
        write_adapter(served.folder, tmp_path / f"v{version}", seed=version)
        control.pause()
        control.load_lora_adapter(f"policy-v{version}", str(tmp_path / f"v{version}"))
        control.resume()
    answers = {name: greedy(name) for name in ("policy-v1", "policy-v2", "tiny", "policy-v1")}
    for version in (1, 2):
        import torch
        from peft import PeftModel

        model = AutoModelForCausalLM.from_pretrained(served.folder, dtype=torch.float32)
        merged = PeftModel.from_pretrained(model, tmp_path / f"v{version}").merge_and_unload()
        ids = merged.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=8, do_sample=False)[0, len(PROMPTS[0]) :]
        assert answers[f"policy-v{version}"] == ids.tolist()
    assert answers["tiny"] == base
    control.unload_lora_adapter("policy-v1")
    control.unload_lora_adapter("policy-v2")


def reward_of(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(completion[0]["content"])) for completion in completions]


def test_the_rollout_worker_of_async_grpo_gets_its_samples(served: Any) -> None:
    from accelerate import PartialState
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker

    PartialState()  # a trainer has made it; without it TRL cannot log
    tokenizer = AutoTokenizer.from_pretrained(served.folder)
    # TRL parses answers of the templates that it knows.
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    prompts = [[{"role": "user", "content": f"What is {number}?"}] for number in range(4)]
    worker = AsyncRolloutWorker(
        model_name="tiny",
        dataset=Dataset.from_dict({"prompt": prompts}),
        reward_funcs=[reward_of],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        vllm_server_url=served.root,
        num_generations=2,
        max_tokens=6,
        max_inflight_tasks=4,
        queue_maxsize=64,
    )
    worker.start()
    try:
        samples = [worker.rollout_buffer.get(timeout=120) for _ in range(4)]
        worker.check_health(stale_after_s=300)
    finally:
        worker.stop()
    for sample in samples:
        assert 1 <= int(sample.completion_mask.sum()) <= 6
        assert (sample.old_log_probs[sample.completion_mask == 1] < 0).all()
