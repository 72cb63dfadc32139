"""Options of the verbs that ask a model: which recipe comes out of them."""

from pathlib import Path

import pytest

from rstar2.cli.agent_flags import BRIEF, AgentFlags, asked_recipe
from rstar2.config import parse_recipe, to_toml
from rstar2.errors import UserError
from rstar2.records import RunDirectory

pytestmark = pytest.mark.unit

RECIPE = """
name = "mine"
seed = 7
[model]
name = "tiny:llama"
context_tokens = 640
[engine]
kv_cache_tokens = 4096
[sandbox]
num_slots = 3
[environment]
tools = ["jupyter_code"]
[agent]
max_tool_output_tokens = 64
[rollout]
max_prompt_tokens = 128
[train]
micro_batch_tokens = 1024
[eval]
benchmarks = ["held"]
max_response_tokens = 256
temperature = 0.3
[[stages]]
name = "only"
data = ["held"]
max_response_tokens = 256
steps = 1
[data.held]
source = "procedural:gcd"
num_problems = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with RunDirectory.create(path, verb="train", recipe_toml=to_toml(parse_recipe(RECIPE)), seed=7):
        (path / "final").mkdir()
    return path


def test_without_a_recipe_there_are_defaults_and_one_problem_gets_brief_limits() -> None:
    recipe = asked_recipe(AgentFlags(), BRIEF)
    assert (recipe.eval.max_turns, recipe.eval.max_response_tokens, recipe.eval.temperature) == (10, 4096, 0.6)
    assert asked_recipe(AgentFlags()).eval.max_response_tokens == 30_720
    assert "seed" not in recipe.model_fields_set, "nobody asked for repeatable samples"


def test_a_recipe_says_what_the_options_do_not(file: Path) -> None:
    recipe = asked_recipe(AgentFlags(recipe=file, model="a", temperature=0.9, overrides=["agent.template=qwen"]), BRIEF)
    assert (recipe.model.name, recipe.model.context_tokens, recipe.engine.kv_cache_tokens) == ("a", 640, 4096)
    assert recipe.environment.tools == ("jupyter_code",)
    assert (recipe.agent.template, recipe.agent.max_tool_output_tokens) == ("qwen", 64)
    assert (recipe.eval.temperature, recipe.eval.max_response_tokens, recipe.seed) == (0.9, 256, 7)
    assert recipe.eval.benchmarks == ("held",)
    assert not recipe.trains


@pytest.mark.parametrize("name", ["", "recipe.toml"])
def test_a_run_is_its_recipe_with_its_final_model(run: Path, name: str) -> None:
    recipe = asked_recipe(AgentFlags(recipe=run / name), BRIEF)
    assert recipe.model.name == str(run / "final")
    assert recipe.model.tiny is None
    assert recipe.environment.tools == ("jupyter_code",)
    assert asked_recipe(AgentFlags(recipe=run / name, model="other")).model.name == "other"
    assert asked_recipe(AgentFlags(recipe=run / name, overrides=["model.name=tiny:qwen3"])).model.name == "tiny:qwen3"


def test_a_run_without_a_final_model_is_a_sentence(run: Path) -> None:
    (run / "final").rmdir()
    with pytest.raises(UserError, match="has no final model: let `rstar2 train --resume"):
        asked_recipe(AgentFlags(recipe=run))
    assert asked_recipe(AgentFlags(recipe=run, model="other")).model.name == "other"


def test_a_mistake_names_the_option_that_was_given() -> None:
    with pytest.raises(UserError, match=r"^--env must be the name of an environment"):
        asked_recipe(AgentFlags(environment="maths"))


def test_a_server_and_a_script_choose_the_engine(file: Path) -> None:
    server = asked_recipe(AgentFlags(recipe=file, base_url="http://h/v1"))
    assert (server.engine.kind, server.model.name) == ("openai", "auto")
    script = asked_recipe(AgentFlags(recipe=file, script=Path("x.txt")))
    assert (script.engine.kind, script.engine.script) == ("scripted", "x.txt")
    vllm = asked_recipe(AgentFlags(engine="vllm", base_url="http://h/v1", model="m"))
    assert (vllm.engine.kind, vllm.engine.base_url, vllm.model.name) == ("vllm", "http://h/v1", "m")


def test_a_sandbox_service_takes_the_place_of_local_slots(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RSTAR2_SANDBOX_TOKEN", raising=False)
    sandbox = asked_recipe(AgentFlags(recipe=file, sandbox="http://h:1")).sandbox
    assert (sandbox.base_url, sandbox.num_slots, sandbox.token_env) == ("http://h:1", None, None)
    monkeypatch.setenv("RSTAR2_SANDBOX_TOKEN", "secret")
    assert asked_recipe(AgentFlags(sandbox="http://h:1")).sandbox.token_env == "RSTAR2_SANDBOX_TOKEN"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (AgentFlags(engine="scripted"), "--engine scripted needs --script: the file of its replies"),
        (AgentFlags(engine="openai"), "--engine openai needs --base-url: the address of the server"),
        (AgentFlags(engine="vllm", script=Path("x")), "--script is for --engine scripted, not vllm"),
        (AgentFlags(engine="embedded", base_url="http://h"), "--base-url is for --engine openai or vllm"),
        (AgentFlags(sandbox="localhost:1"), '--sandbox cannot be the text "localhost:1"'),
        (AgentFlags(overrides=["agent.templat=qwen"]), "agent.templat is not a key of [agent]; did you mean template?"),
        (AgentFlags(recipe=Path("absent.toml")), "absent.toml: there is no such file"),
    ],
)
def test_mistakes_name_the_option(flags: AgentFlags, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        asked_recipe(flags)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_that_trained_nothing_is_a_sentence(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", verb="eval", recipe_toml="", seed=0):
        pass
    with pytest.raises(UserError, match="holds a run of `rstar2 eval`; name one of `rstar2 train`"):
        asked_recipe(AgentFlags(recipe=tmp_path / "run"))
