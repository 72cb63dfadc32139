"""How fast traces are written and read: `rstar2.records.codec`, pydantic's `TypeAdapter` alone, and Python's `json`.

    python benchmarks/records.py [--tokens 2000] [--repeats 30] [--json FILE]

Each figure is the best of the repeats, in megabytes of JSON a second. They take turns in one process. `json` reads
plain values and checks no type. The last lines say who can store a lone surrogate, which a model can write.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rstar2.records import Outcome, StopReason, ToolCall, ToolResult, ToolStatus, Trace, Turn
from rstar2.records.codec import decode, encode


def values_of(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


ADAPTER = TypeAdapter(Trace)
CODECS: dict[str, tuple[Callable[[Trace], bytes], Callable[[bytes], object]]] = {
    "records.codec": (encode, lambda line: decode(Trace, line)),
    "json": (lambda trace: json.dumps(trace, default=values_of, ensure_ascii=False).encode(), json.loads),
    "TypeAdapter": (ADAPTER.dump_json, lambda line: ADAPTER.validate_json(line, strict=True)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    trace = make_trace(options.tokens)
    lines = {name: write(trace) for name, (write, _) in CODECS.items()}
    seconds: dict[str, dict[str, list[float]]] = {name: {"encode": [], "decode": []} for name in CODECS}
    for _ in range(options.repeats):
        for name, (write, read) in CODECS.items():
            seconds[name]["encode"].append(timed(write, trace))
            seconds[name]["decode"].append(timed(read, lines[name]))
    found = {
        name: {what: len(lines[name]) / 1e6 / min(values) for what, values in of_codec.items()}
        for name, of_codec in seconds.items()
    }
    print(f"a trace of {options.tokens} tokens, {len(lines['records.codec']):,} bytes; MB/s")
    for name, speeds in found.items():
        print(f"{name:16} encode {speeds['encode']:7.1f}  decode {speeds['decode']:7.1f}")
    odd = replace(trace, note="\ud83d")
    for name, (write, read) in CODECS.items():
        print(f"{name} writes a lone surrogate: {succeeds(write, odd)}, reads it: {succeeds(read, encode(odd))}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def make_trace(num_tokens: int, num_turns: int = 4) -> Trace:
    draw = random.Random(0)
    each = num_tokens // num_turns
    turns = [
        Turn(
            token_ids=tuple(draw.randrange(150_000) for _ in range(each)),
            log_probs=tuple(-draw.expovariate(2) for _ in range(each)),
            entropies=tuple(draw.expovariate(2) for _ in range(each)),
            text="word " * each,
            stop_reason=StopReason.END_OF_TURN,
            calls=(ToolCall('{"name": "python"}', "python", {"code": "print(1)\n" * 20}),),
            results=(ToolResult(ToolStatus.OK, "1\n" * 20, wall_s=0.01),),
        )
        for _ in range(num_turns)
    ]
    return Trace("step-1/0", "problem", tuple(range(200)), "prompt " * 200, tuple(turns), Outcome.ANSWERED, reward=1.0)


def timed(work: Callable[[Any], object], argument: object) -> float:
    started_s = time.perf_counter()
    work(argument)
    return time.perf_counter() - started_s


def succeeds(work: Callable[[Any], object], argument: object) -> bool:
    try:
        work(argument)
    except Exception:
        return False
    return True


if __name__ == "__main__":
    main()
