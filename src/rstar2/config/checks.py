"""Combinations of fields that cannot work, each with a message of one sentence.

Pure: takes a recipe whose single fields are valid, and yields everything that is impossible about it. Each finding
names the fields that it was concluded from, so that a reader of a faulty file can leave out conclusions from values
that are themselves in doubt.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rstar2.config.model import TINY_PREFIX
from rstar2.extensions import BENCHMARKS

if TYPE_CHECKING:
    from rstar2.config.recipe import Recipe

Path = tuple[str | int, ...]
WITH_TOOLS = ("math", "code")
"""The sources that have a tool if the recipe names none."""
_SET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Impossibility:
    """`paths[0]` is the field to change; the others are what it collides with."""

    paths: tuple[Path, ...]
    sentence: str

    def __str__(self) -> str:
        return f"{'.'.join(str(part) for part in self.paths[0])} {self.sentence}"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` was most likely meant to be."""
    names = list(candidates)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return close[0] if close else next((known for known in names if len(name) > 2 and name.lower() in known), None)


def impossibilities(recipe: "Recipe") -> Iterator[Impossibility]:
    """Everything about the recipe that cannot work."""
    for check in (_model, _engine, _sandbox, _algo, _names, _lengths, _stages, _staleness, _cluster):
        yield from check(recipe)


def _no(sentence: str, *keys: str | Path) -> Impossibility:
    return Impossibility(tuple(tuple(key.split(".")) if isinstance(key, str) else key for key in keys), sentence)


def _model(recipe: "Recipe") -> Iterator[Impossibility]:
    tiny = recipe.model.tiny
    if tiny is None:
        return
    if not recipe.model.name.startswith(TINY_PREFIX):
        yield _no(
            "is for models built from nothing; remove it, or set model.name to tiny:qwen3", "model.tiny", "model.name"
        )
    if tiny.hidden_size % tiny.num_heads or (tiny.hidden_size // tiny.num_heads) % 2:
        yield _no(
            f"of {tiny.num_heads} does not divide hidden_size {tiny.hidden_size} into heads of even width",
            "model.tiny.num_heads",
            "model.tiny.hidden_size",
        )
    if tiny.num_heads % tiny.num_kv_heads:
        yield _no(
            f"of {tiny.num_kv_heads} does not divide num_heads {tiny.num_heads}",
            "model.tiny.num_kv_heads",
            "model.tiny.num_heads",
        )


def _engine(recipe: "Recipe") -> Iterator[Impossibility]:
    engine = recipe.engine
    if recipe.trains and engine.kind == "vllm" and recipe.cluster is None:
        yield _no(
            'cannot be "vllm" without a [cluster]: on one machine the engine reads the trainer\'s own weights; use '
            '"embedded", or add [cluster]',
            "engine.kind",
            "cluster",
        )
    if recipe.trains and engine.kind in ("openai", "scripted"):
        yield _no(
            f'cannot be "{engine.kind}" in training: rstar2 cannot change its weights; use "embedded"',
            "engine.kind",
        )
    if engine.batch_invariant:
        yield from _batch_invariant(recipe)
    for section, tree in (("rollout", recipe.rollout.tree), ("eval", recipe.eval.tree)):
        for key, name in () if tree is None else (("points", tree.points), ("policy", tree.policy)):
            if name == "entropy" and engine.kind != "embedded":
                yield _no(
                    f'cannot be "entropy" with engine.kind "{engine.kind}", which does not report the entropies of '
                    'tokens; use "embedded", or another choice here',
                    f"{section}.tree.{key}",
                    "engine.kind",
                )
    yield from _engine_source(recipe)


def _batch_invariant(recipe: "Recipe") -> Iterator[Impossibility]:
    if recipe.engine.kind != "embedded":
        yield _no(f"is for embedded, not {recipe.engine.kind}", "engine.batch_invariant", "engine.kind")
    elif recipe.trains and recipe.cluster is not None:
        yield _no("is for one machine: leave one of them out", "engine.batch_invariant", "cluster")
    if recipe.model.device == "cuda" and recipe.model.dtype == "float32":
        yield _no("needs bfloat16 on a GPU", "engine.batch_invariant", "model.dtype")
    if recipe.trains and recipe.model.lora is not None and recipe.model.lora.dropout:
        yield _no(
            "needs adapters that can be merged, and those with dropout cannot: set it to 0",
            "engine.batch_invariant",
            "model.lora.dropout",
        )


def _engine_source(recipe: "Recipe") -> Iterator[Impossibility]:
    """Where the tokens come from, if not from a model in this process."""
    kind, engine = recipe.engine.kind, recipe.engine
    if engine.script is not None and engine.base_url is not None:
        yield _no("and engine.base_url exclude each other: give one of them", "engine.script", "engine.base_url")
        return
    if kind == "scripted" and engine.script is None:
        yield _no("scripted needs engine.script: the file of its replies", "engine.kind", "engine.script")
    if kind != "scripted" and engine.script is not None:
        yield _no(f"is for engine.kind scripted, not {kind}: leave one of them out", "engine.script", "engine.kind")
    if kind == "openai" and engine.base_url is None:
        yield _no("openai needs engine.base_url: the address of the server", "engine.kind", "engine.base_url")
    if engine.base_url is None:
        for key, value in (("api_key_env", engine.api_key_env), ("tokenizer", engine.tokenizer)):
            if value is not None:
                yield _no(
                    "is for a server, and there is none: give engine.base_url as well, or leave it out",
                    f"engine.{key}",
                    "engine.base_url",
                )
    elif kind == "embedded" or recipe.trains:
        what = "engine.kind openai or vllm" if kind == "embedded" else "asking a model, not for training one"
        yield _no(f"is for {what}: leave it out", "engine.base_url", "engine.kind")


def _sandbox(recipe: "Recipe") -> Iterator[Impossibility]:
    sandbox = recipe.sandbox
    if sandbox.base_url is not None and sandbox.num_slots is not None:
        yield _no(
            "is set by the service at sandbox.base_url; remove one of the two", "sandbox.num_slots", "sandbox.base_url"
        )
    if sandbox.packages and sandbox.base_url is not None:
        yield _no(
            "is set by the service at sandbox.base_url (`rstar2 sandbox serve --package`); remove one of the two",
            "sandbox.packages",
            "sandbox.base_url",
        )
    if sandbox.token_env is not None and sandbox.base_url is None:
        yield _no(
            "is for a service, and no sandbox.base_url is given; remove it", "sandbox.token_env", "sandbox.base_url"
        )


def _algo(recipe: "Recipe") -> Iterator[Impossibility]:
    algo, train = recipe.algo, recipe.train
    if algo.selection == "off" and algo.oversample_factor != 1:
        yield _no(
            f'must be 1 when algo.selection is "off", which keeps all that is sampled; for the same '
            f"{algo.num_sampled} samples set algo.group_size to {algo.num_sampled}",
            "algo.oversample_factor",
            "algo.selection",
        )
    if algo.selection != "off" and algo.oversample_factor == 1:
        yield _no(
            f'of 1 leaves "{algo.selection}" selection nothing to choose from; set it to 2, or algo.selection to "off"',
            "algo.oversample_factor",
            "algo.selection",
        )
    if train.optimizer_steps_per_batch > train.prompts_per_step:
        yield _no(
            f"of {train.optimizer_steps_per_batch} is more than the {train.prompts_per_step} groups of a step "
            "(train.prompts_per_step), and groups are never split",
            "train.optimizer_steps_per_batch",
            "train.prompts_per_step",
        )


def _names(recipe: "Recipe") -> Iterator[Impossibility]:
    known = set(recipe.data)
    uses: list[tuple[Path, tuple[str, ...]]] = [
        (("stages", index, "data"), stage.data) for index, stage in enumerate(recipe.stages)
    ]
    if recipe.sft is not None:
        uses.append((("sft", "data"), recipe.sft.data))
    for path, names in uses:
        for name in names:
            if name not in known:
                yield _no(
                    f"names the set {_quoted(name)}, which [data] does not declare{_or_else(name, known)}",
                    path,
                    ("data",),
                    ("data", name),
                )
    for index, stage in enumerate(recipe.stages):
        shared = [name for name in stage.data if name in known and recipe.data[name].share is not None]
        if shared and len(shared) < len(set(stage.data) & known):
            without = next(name for name in stage.data if name in known and name not in shared)
            yield _no(
                f"mixes sets with and without a share: give data.{without}.share as well",
                ("stages", index, "data"),
                ("data", without, "share"),
            )
    for name in recipe.environments:
        if not _SET_NAME.fullmatch(name):
            yield _no(
                "cannot name an environment: a name is letters, digits, _ and -, and begins with a letter",
                ("environments", name),
            )
    for name in recipe.eval.benchmarks:
        if name not in known and name not in BENCHMARKS:
            yield _no(
                f"names {_quoted(name)}, which is no benchmark and no set of [data]"
                f"{_or_else(name, {*known, *BENCHMARKS})}",
                "eval.benchmarks",
                ("data",),
                ("data", name),
            )
    for name, data_set in recipe.data.items():
        if data_set.environment is not None and data_set.environment not in recipe.environments:
            yield _no(
                f"names {_quoted(data_set.environment)}, which [environments] does not declare"
                f"{_or_else(data_set.environment, set(recipe.environments))}",
                ("data", name, "environment"),
                ("environments",),
            )
        if not _SET_NAME.fullmatch(name):
            yield _no("cannot name a set: a name is letters, digits, _ and -, and begins with a letter", ("data", name))
        if name in BENCHMARKS:
            yield _no("has the name of a benchmark; call the set something else", ("data", name))
        if data_set.kind == "procedural" and data_set.num_problems is None:
            yield _no(
                f"is needed: {data_set.source} can generate any number, so say how many, as in num_problems = 1000",
                ("data", name, "num_problems"),
                ("data", name, "source"),
            )


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _or_else(name: str, known: set[str]) -> str:
    meant = nearest(name, sorted(known))
    if meant is not None:
        return f"; did you mean {_quoted(meant)}?"
    return f"; there are {', '.join(_quoted(each) for each in sorted(known))}" if known else ""


def _lengths(recipe: "Recipe") -> Iterator[Impossibility]:
    responses: list[tuple[Path, int]] = [
        (("stages", index, "max_response_tokens"), stage.max_response_tokens)
        for index, stage in enumerate(recipe.stages)
    ]
    if recipe.eval.benchmarks:
        responses.append((("eval", "max_response_tokens"), recipe.eval.max_response_tokens))
    prompt, output = recipe.rollout.max_prompt_tokens, recipe.agent.max_tool_output_tokens
    for path, response in responses:
        rooms: list[tuple[str, int | None]] = [
            ("model.context_tokens", recipe.model.context_tokens),
            ("engine.kv_cache_tokens", recipe.engine.kv_cache_tokens),
        ]
        if path[0] == "stages":
            rooms.append(("train.micro_batch_tokens", recipe.train.micro_batch_tokens))
        for key, room in rooms:
            if room is not None and prompt + response > room:
                yield _no(
                    f"of {response} and rollout.max_prompt_tokens of {prompt} make {prompt + response} tokens, more "
                    f"than {key} of {room}; lower one of the two or raise {key}",
                    path,
                    "rollout.max_prompt_tokens",
                    key,
                )
        if output >= response and _may_have_long_results(recipe):
            yield _no(
                f"of {response} is used up by a single tool result (agent.max_tool_output_tokens is {output})",
                path,
                "agent.max_tool_output_tokens",
            )
    if recipe.sft is None:
        return
    for key, room in (
        ("model.context_tokens", recipe.model.context_tokens),
        ("train.micro_batch_tokens", recipe.train.micro_batch_tokens),
    ):
        if room is not None and recipe.sft.max_tokens > room:
            yield _no(f"of {recipe.sft.max_tokens} is more than {key} of {room}", "sft.max_tokens", key)


def _may_have_long_results(recipe: "Recipe") -> bool:
    """The tools of a class are not known here: then what was chosen is checked, and the default is not."""
    limit = recipe.agent.max_tool_output_tokens
    is_chosen = limit != type(recipe.agent).model_fields["max_tool_output_tokens"].default
    return any(
        bool(section.mcp or section.tools) or (section.tools is None if section.source in WITH_TOOLS else is_chosen)
        for section in (recipe.environment, *recipe.environments.values())
    )


def _stages(recipe: "Recipe") -> Iterator[Impossibility]:
    counts = Counter(stage.name for stage in recipe.stages)
    seen: set[str] = set()
    for index, stage in enumerate(recipe.stages):
        if counts[stage.name] > 1 and stage.name in seen:
            yield _no(
                f'is "{stage.name}", as of an earlier stage; give each stage its own name', ("stages", index, "name")
            )
        seen.add(stage.name)
        wanted = stage.difficulty_filter
        if wanted is not None and wanted.drop_solved > wanted.num_samples:
            path: Path = ("stages", index, "difficulty_filter")
            yield _no(
                f"of {wanted.drop_solved} can never be reached with num_samples of {wanted.num_samples}",
                (*path, "drop_solved"),
                (*path, "num_samples"),
            )


def _staleness(recipe: "Recipe") -> Iterator[Impossibility]:
    if recipe.train.max_staleness == 0:
        return
    if recipe.algo.tis_cap is None:
        why = "rollouts of an older policy, taken for the present one's, make training collapse"
        yield _no(f"above 0 needs algo.tis_cap (2 is common): {why}", "train.max_staleness", "algo.tis_cap")
    if recipe.cluster is None and recipe.model.lora is None:
        why = "without adapters the engine reads the very weights that training changes"
        yield _no(f"above 0 needs model.lora on one machine: {why}", "train.max_staleness", "model.lora")
    if recipe.cluster is not None and recipe.cluster.layout == "colocated":
        yield _no(
            'must be 0 in the colocated layout, which never runs ahead; or set cluster.layout to "separated"',
            "train.max_staleness",
            "cluster.layout",
        )


def _cluster(recipe: "Recipe") -> Iterator[Impossibility]:
    cluster = recipe.cluster
    if cluster is None:
        return
    parts = {"num_trainer_ranks": cluster.num_trainer_ranks, "num_engines": cluster.num_engines}
    sizes = ("cluster.num_nodes", "cluster.gpus_per_node")
    must_be_given = "in the separated layout" if cluster.layout == "separated" else "in a cluster without GPUs"
    for name, number in parts.items():
        if number is None and (cluster.layout == "separated" or cluster.gpus_per_node == 0):
            yield _no(f"must be given {must_be_given}", f"cluster.{name}", "cluster.layout", "cluster.gpus_per_node")
        if number is not None and 0 < cluster.num_gpus < number:
            yield _no(f"of {number} is more than the {cluster.num_gpus} GPUs of the cluster", f"cluster.{name}", *sizes)
    num_wanted = sum(number or 0 for number in parts.values())
    each_fits = all(number is not None and number <= cluster.num_gpus for number in parts.values())
    if cluster.layout == "separated" and each_fits and cluster.num_gpus < num_wanted:
        yield _no(
            f"and cluster.num_engines make {num_wanted}, more than the {cluster.num_gpus} GPUs that the separated "
            "layout divides between them",
            "cluster.num_trainer_ranks",
            "cluster.num_engines",
            "cluster.layout",
            *sizes,
        )
    if cluster.num_gpus > 0 and recipe.model.device == "cpu":
        yield _no(
            'cannot be "cpu" on a cluster with GPUs; set it to "cuda", or cluster.gpus_per_node to 0',
            "model.device",
            "cluster.gpus_per_node",
        )
