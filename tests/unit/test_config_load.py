"""A recipe loads, or its reader learns every mistake at once: which key, which line, what to write instead."""

from dataclasses import asdict
from pathlib import Path
from typing import get_args

import pytest

from rstar2.algo import SelectionRule
from rstar2.algo.penalties import Penalty
from rstar2.config import SandboxLimits, load_recipe, parse_recipe, shipped_recipes, to_toml
from rstar2.config.learning import AlgoSection
from rstar2.errors import UserError
from rstar2.extensions import SELECTIONS
from rstar2.sandbox import Limits

pytestmark = pytest.mark.unit

RECIPES = shipped_recipes()

VALID = """\
name = "x"

[model]
name = "tiny:qwen3"

[[stages]]
name = "concise"
data = ["train"]
max_response_tokens = 2048
steps = 3

[[stages]]
name = "hard"
data = ["train"]
max_response_tokens = 4096
steps = 4

[stages.difficulty_filter]
num_samples = 8

[data.train]
source = "procedural:gcd"
num_problems = 10
"""


def mistakes(text: str, *overrides: str) -> list[str]:
    """The lines of the message, without its headline."""
    with pytest.raises(UserError) as caught:
        parse_recipe(text, overrides, file="r.toml")
    head, *rest = str(caught.value).split("\n")
    return [line.strip() for line in rest] or [head]


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipes_load_and_survive_being_written_out(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert parse_recipe(to_toml(recipe)) == recipe


def test_a_recipe_names_what_the_algorithm_has() -> None:
    for name in SELECTIONS:
        assert AlgoSection(selection=name).selection == name and isinstance(SELECTIONS.load(name), SelectionRule)
    assert set(get_args(AlgoSection.model_fields["penalty"].annotation)) == set(Penalty)


def test_there_are_shipped_recipes_and_each_says_in_one_line_what_it_is_for() -> None:
    assert RECIPES.keys() >= {"quickstart", "smollm2-1gpu", "qwen3-14b-64gpu"}
    for recipe in RECIPES.values():
        assert recipe.text.startswith("# ") and recipe.summary.endswith(".") and len(recipe.summary) <= 72


def test_a_file_comes_before_the_shipped_recipe_of_its_name_and_a_folder_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-1gpu").mkdir()
    (tmp_path / "quickstart").write_text(VALID)
    assert load_recipe("smollm2-1gpu").name == "smollm2-1gpu"
    assert load_recipe(Path("quickstart")).name == "x"


def test_a_wrong_name_is_answered_with_the_names() -> None:
    with pytest.raises(UserError, match=r"quickstrat: there is no such file, .* or one of quickstart, qwen-coder"):
        load_recipe("quickstrat")


def test_the_large_recipe_has_the_numbers_of_the_report() -> None:
    recipe = load_recipe("qwen3-14b-64gpu")
    limits = [
        (stage.max_response_tokens, stage.max_turns, stage.steps, stage.reset_optimizer) for stage in recipe.stages
    ]
    assert limits == [(8192, 10, 300, False), (12288, 10, 85, False), (12288, 15, 125, True)]
    assert recipe.cluster is not None and recipe.cluster.num_gpus == 64
    assert (recipe.algo.group_size, recipe.algo.num_sampled) == (16, 32)
    assert (recipe.algo.clip_low, recipe.algo.clip_high, recipe.algo.kl_coef, recipe.algo.tis_cap) == (
        0.2,
        0.28,
        0,
        None,
    )
    assert (recipe.train.lr, recipe.train.warmup_steps, recipe.train.prompts_per_step) == (1e-6, 20, 512)
    assert recipe.sft is not None
    assert (recipe.sft.epochs, recipe.sft.lr, recipe.sft.warmup_share, recipe.sft.batch_size) == (3, 5e-6, 0.04, 128)
    assert (recipe.eval.num_samples, recipe.eval.temperature, recipe.eval.max_turns) == (16, 0.6, 30)


def test_a_misspelt_key_a_wrong_type_and_an_impossible_combination_give_three_clear_errors() -> None:
    text = VALID + '[algo]\ngroup_sise = 8\n\n[train]\nlr = "3"\n\n[engine]\nkind = "vllm"\n'
    with pytest.raises(UserError) as caught:
        parse_recipe(text, file="my/r.toml")
    assert str(caught.value) == (
        "my/r.toml has 3 mistakes:\n"
        "  my/r.toml:25: algo.group_sise is not a key of [algo]; did you mean group_size?\n"
        '  my/r.toml:28: train.lr must be a number, more than 0, not the text "3"\n'
        '  my/r.toml:31: engine.kind cannot be "vllm" without a [cluster]: on one machine the engine reads the '
        'trainer\'s own weights; use "embedded", or add [cluster]'
    )


def test_a_single_mistake_is_a_single_line() -> None:
    with pytest.raises(UserError) as caught:
        parse_recipe(VALID + "[algo]\ngroup_size = 1\n", file="r.toml")
    assert str(caught.value) == "r.toml:25: algo.group_size must be an integer, at least 2, not the integer 1"


@pytest.mark.parametrize(
    ("addition", "complaint"),
    [
        (
            '[train]\nwarmup_steps = "3"',
            'r.toml:25: train.warmup_steps must be an integer, at least 0, not the text "3"',
        ),
        (
            "[train]\nwarmup_steps = 3.0",
            "r.toml:25: train.warmup_steps must be an integer, at least 0, not the number 3.0",
        ),
        ("[train]\nwarmup_steps = true", "r.toml:25: train.warmup_steps must be an integer, at least 0, not true"),
        ("[train]\nstop_at_collapse = 1", "r.toml:25: train.stop_at_collapse must be true or false, not the integer 1"),
        ("[train]\nlr = nan", "r.toml:25: train.lr must be a number, more than 0, not the number nan"),
        (
            "[train]\nlr = 1979-05-27",
            "r.toml:25: train.lr must be a number, more than 0, not the date or time 1979-05-27",
        ),
        (
            'train = "fast"',
            "r.toml:24: data.train.train is not a key of [data.train]; its keys are source, environment, share, split, "
            "num_problems",
        ),
        ("[eval]\nbenchmarks = [1]", "r.toml:25: eval.benchmarks.0 must be a text, not the integer 1"),
        ("[eval]\nbenchmarks = 'aime24'", 'r.toml:25: eval.benchmarks must be a list of texts, not the text "aime24"'),
        (
            '[algo]\nselection = "papers"',
            "r.toml:25: algo.selection must be the name of a selection (paper, quotas, release, random, off) or "
            "package.module:name; did you mean 'paper'?",
        ),
        ("[algo]\nlr = 1e-6", "r.toml:25: algo.lr is not a key of [algo]; did you mean sft.lr or train.lr?"),
        ("[trian]\nlr = 1e-6", "r.toml:24: trian is not a key of a recipe; did you mean train?"),
        ('["a b"]', 'r.toml:24: "a b" is not a key of a recipe; its keys are'),
        ("[model.lora]\nrank = 0", "r.toml:25: model.lora.rank must be at least 1, not 0; for full fine-tuning leave"),
        ('[data.b]\nsource = "ftp:x"', "r.toml:25: data.b.source must be procedural:TASK[,TASK], catalog:NAME, hub:"),
        ("[sft]\nepochs = 2", "r.toml:24: sft.data is required. Sets of conversations from [data]"),
        ('[sandbox]\nbase_url = "localhost"', 'r.toml:25: sandbox.base_url cannot be the text "localhost". Address of'),
    ],
)
def test_faulty_values(addition: str, complaint: str) -> None:
    (line,) = mistakes(f"{VALID}{addition}\n")
    assert line.startswith(complaint)


@pytest.mark.parametrize(
    "overrides",
    [["environment.tools=[]", "agent.max_tool_output_tokens=2048"], ["environment.source=file:own.py:Own"]],
)
def test_without_tools_no_result_is_too_long(overrides: list[str], tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(VALID)
    short = ["stages.0.max_response_tokens=512", "stages.1.max_response_tokens=512"]
    load_recipe(tmp_path / "r.toml", [*short, *overrides])
    with pytest.raises(UserError, match="used up by a single tool result"):
        load_recipe(
            tmp_path / "r.toml", ["agent.max_tool_output_tokens=600", "environment.source=file:own.py:Own", *short]
        )


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            ["rollout.max_prompt_tokens=29000", "train.micro_batch_tokens=40000"],
            "stages.1.max_response_tokens of 4096 and rollout.max_prompt_tokens of 29000 make 33096 tokens, more than "
            "model.context_tokens of 32768",
        ),
        (["engine.kv_cache_tokens=4096"], "more than engine.kv_cache_tokens of 4096"),
        (["train.micro_batch_tokens=6000"], "more than train.micro_batch_tokens of 6000"),
        (["agent.max_tool_output_tokens=2048"], "is used up by a single tool result"),
        (["stages.1.name=concise"], 'stages.1.name is "concise", as of an earlier stage'),
        (['stages.hard.data=["trian"]'], 'names the set "trian", which [data] does not declare; did you mean "train"?'),
        (
            ['eval.benchmarks=["math50"]'],
            'names "math50", which is no benchmark and no set of [data]; did you mean "math500"?',
        ),
        (["stages.hard.difficulty_filter.drop_solved=9"], "of 9 can never be reached with num_samples of 8"),
        (["engine.kind=vllm"], 'engine.kind cannot be "vllm" without a [cluster]'),
        (
            [
                "engine.kind=vllm",
                "cluster={num_nodes = 1, gpus_per_node = 8}",
                "rollout.tree={num_roots = 8, points = 'entropy'}",
            ],
            'rollout.tree.points cannot be "entropy" with engine.kind "vllm", which does not report the entropies',
        ),
        (
            [
                "engine.kind=vllm",
                "cluster={num_nodes = 1, gpus_per_node = 8}",
                "eval.tree={num_roots = 8, policy = 'entropy'}",
            ],
            'eval.tree.policy cannot be "entropy" with engine.kind "vllm"',
        ),
        (["rollout.tree={num_roots = 8, points = 'result'}"], "did you mean 'results'?"),
        (["sandbox.base_url=http://h", "sandbox.num_slots=2"], "sandbox.num_slots is set by the service"),
        (["sandbox.token_env=TOKEN"], "sandbox.token_env is for a service"),
        (["algo.selection=off"], "set algo.group_size to 32"),
        (["algo.oversample_factor=1"], 'leaves "paper" selection nothing to choose from'),
        (["train.prompts_per_step=2", "train.optimizer_steps_per_batch=3"], "groups are never split"),
        (
            ["data.train={source = 'procedural:gcd'}"],
            "data.train.num_problems is needed: procedural:gcd can generate any number",
        ),
        (["data.aime24={source = 'file:x'}"], "data.aime24 has the name of a benchmark"),
        (["data.é={source = 'file:x'}"], "cannot name a set"),
        (
            ['sft.data=["train"]', "sft.max_tokens=20000", "train.micro_batch_tokens=16384"],
            "sft.max_tokens of 20000 is more than train.micro_batch_tokens",
        ),
        (["model.name=other", "model.tiny={}"], "model.tiny is for models built from nothing"),
        (
            ["engine.batch_invariant=true", "model.device=cuda", "model.dtype=float32"],
            "engine.batch_invariant needs bfloat16 on a GPU",
        ),
        (
            ["engine.batch_invariant=true", "model.lora={dropout = 0.1}"],
            "engine.batch_invariant needs adapters that can be merged",
        ),
        (
            ["engine.batch_invariant=true", "engine.kind=vllm", "cluster={num_nodes = 1, gpus_per_node = 8}"],
            "engine.batch_invariant is for embedded, not vllm",
        ),
        (
            ["engine.batch_invariant=true", "cluster={num_nodes = 1, gpus_per_node = 8}", "model.device=cuda"],
            "engine.batch_invariant is for one machine",
        ),
        (["model.tiny.num_heads=10"], "does not divide hidden_size 192"),
        (["model.tiny.num_kv_heads=4"], "model.tiny.num_kv_heads of 4 does not divide num_heads 6"),
        (
            ["cluster={num_nodes = 1, gpus_per_node = 0, num_engines = 1}"],
            "cluster.num_trainer_ranks must be given in a cluster without",
        ),
        (
            ["cluster={num_nodes = 1, gpus_per_node = 8, num_engines = 9}"],
            "of 9 is more than the 8 GPUs of the cluster",
        ),
        (
            ["cluster={num_nodes = 1, gpus_per_node = 8}", "train.max_staleness=1", "algo.tis_cap=2.0"],
            "train.max_staleness must be 0 in the colocated",
        ),
        (
            ["train.max_staleness=1", "algo.tis_cap=2.0"],
            "train.max_staleness above 0 needs model.lora",
        ),
        (
            ["train.max_staleness=1", "model.lora={rank = 8}"],
            "train.max_staleness above 0 needs algo.tis_cap",
        ),
        (
            ["cluster={num_nodes = 1, gpus_per_node = 8}", "model.device=cpu"],
            'model.device cannot be "cpu" on a cluster with GPUs',
        ),
        (
            [
                "cluster={num_nodes = 1, gpus_per_node = 8, num_engines = 6, num_trainer_ranks = 4}",
                "cluster.layout=separated",
            ],
            "cluster.num_trainer_ranks and cluster.num_engines make 10, more than the 8 GPUs",
        ),
    ],
)
def test_impossible_combinations(overrides: list[str], complaint: str) -> None:
    (line,) = mistakes(VALID, *overrides)
    assert complaint in line


def test_the_separated_layout_needs_its_parts_and_its_machines() -> None:
    lines = mistakes(VALID, "cluster.layout=separated")
    assert [line.split(": ")[1].split(" is required")[0] for line in lines] == [
        "cluster.num_nodes",
        "cluster.gpus_per_node",
    ]
    lines = mistakes(VALID, "cluster={num_nodes = 1, gpus_per_node = 8, layout = 'separated'}")
    assert len(lines) == 2 and all("must be given in the separated layout" in line for line in lines)


def test_what_follows_from_a_faulty_value_is_not_reported() -> None:
    (line,) = mistakes(VALID, "model.context_tokens=true")
    assert "model.context_tokens must be an integer" in line
    (line,) = mistakes(VALID.replace('name = "tiny:qwen3"', "name = 3"), "model.tiny={}")
    assert "model.name must be a text" in line
    (line,) = mistakes(VALID.replace("[data.train]", "[data.train]\nsorce = 1"))
    assert "did you mean source?" in line


def test_a_misspelt_required_key_is_reported_once() -> None:
    (line,) = mistakes(VALID.replace("steps = 3", "step = 3"))
    assert line == "r.toml:10: stages.0.step is not a key of [[stages]]; did you mean steps?"


def test_lines_are_right_inside_lists_of_tables_and_after_long_values() -> None:
    text = 'name = """\na\n[b]\n"""\n' + VALID.replace('name = "x"\n', "").replace("num_samples = 8", "num_samples = 0")
    lines = mistakes(text)
    assert lines[0].startswith("r.toml:1: name cannot be")
    assert lines[1].startswith("r.toml:22: stages.1.difficulty_filter.num_samples must be")


def test_overrides_reach_tables_lists_and_stages_by_name() -> None:
    recipe = parse_recipe(
        VALID,
        [
            "train.lr=1e-5",
            "stages.0.steps=7",
            "stages.hard.steps = 9",
            "algo.selection=random",
            "model.lora.rank=4",
            'eval.benchmarks=["train"]',
            "name=other-name",
            "train.lr=2e-5",
            "eval.max_response_tokens=2000",
        ],
    )
    assert recipe.train.lr == 2e-5
    assert [stage.steps for stage in recipe.stages] == [7, 9]
    assert (recipe.algo.selection, recipe.name, recipe.eval.benchmarks) == ("random", "other-name", ("train",))
    assert recipe.model.lora is not None and recipe.model.lora.rank == 4


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("train.lr", "--set train.lr: an override is a dotted key, = and a value"),
        ("=3", "--set =3: an override is a dotted key"),
        ("a..b=3", "--set a..b=3: an override is a dotted key"),
        ("train.lr=fast", '--set train.lr=fast: train.lr must be a number, more than 0, not the text "fast"'),
        ("train.learning=1", "--set train.learning=1: train.learning is not a key of [train]; its keys are lr,"),
        ("stages.concis.steps=1", '--set stages.concis.steps=1: stages has no entry "concis"; did you mean "concise"?'),
        ("stages.5.steps=1", '--set stages.5.steps=1: stages has no entry "5"; it has 2: concise, hard'),
        ("name.x=1", '--set name.x=1: name is the text "x", not a table, so it has no x to set'),
        ("eval.benchmarks=[aime24]", "--set eval.benchmarks=[aime24]: [aime24] is not a valid TOML value"),
    ],
)
def test_faulty_overrides(override: str, complaint: str) -> None:
    (line,) = mistakes(VALID, override)
    assert line.startswith(complaint)


def test_syntax_errors_name_file_line_and_column() -> None:
    assert mistakes('name = "x"\nseed 3\n') == [
        "r.toml:2:6: is not valid TOML: Expected '=' after a key in a key/value pair"
    ]
    (line,) = mistakes("name = [1,")
    assert line.startswith("r.toml:1:11: is not valid TOML: ")
    (line,) = mistakes(f"seed = {'9' * 5000}")
    assert line.startswith("r.toml: is not valid TOML: ")
    (line,) = mistakes(f"seed = {'[' * 5000}")
    assert line.startswith("r.toml: is not a recipe: its values are nested too deeply")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b'name = "x"\n# \xff\n')
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * ((1 << 20) + 1))
    for path, sentence in (
        (tmp_path / "missing.toml", "missing.toml: there is no such file"),
        (tmp_path, "this is a directory"),
        (binary, "binary.toml:2: is not UTF-8 text (byte 13)"),
        (large, "is larger than 1 MiB"),
        (binary / "inner", "cannot be read: Not a directory"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(UserError) as caught:
            load_recipe(path)
        assert sentence in str(caught.value)


def test_line_ends_and_byte_order_marks_of_other_systems_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(b"\xef\xbb\xbf" + VALID.replace("\n", "\r\n").encode())
    assert load_recipe(path) == parse_recipe(VALID)
    with pytest.raises(UserError, match=r"r.toml:10: stages.0.steps must be"):
        parse_recipe(VALID.replace("steps = 3", "steps = 0").replace("\n", "\r\n"), file="r.toml")


def test_a_key_of_any_depth_is_only_unknown() -> None:
    (line,) = mistakes(f"{'a.' * 3000}a = 1\n{VALID}")
    assert line.startswith("r.toml:1: a is not a key of a recipe")


def test_the_limits_of_a_recipe_are_those_of_the_sandbox() -> None:
    assert SandboxLimits().model_dump() == asdict(Limits())


def test_a_recipe_made_in_python_is_checked_too() -> None:
    recipe = parse_recipe(VALID)
    with pytest.raises(ValueError, match=r"algo\.oversample_factor must be 1"):
        type(recipe).model_validate({**recipe.model_dump(), "algo": {"selection": "off"}})
