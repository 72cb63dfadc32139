"""The lower bound of any schedule: max(total work / capacity, longest rollout).

Total work: every sampled token reads its context from the cache once, and every token goes through the linear layers
once. The weights are read once a step; an engine whose cache holds C tokens serves at most C tokens of context a step,
so the contexts of all steps together, divided by C, bound the number of steps from below (prompts, which siblings
share, are left out of that count). Longest rollout: alone on an engine, with its prompt in the cache, and its tools.
"""

from rstar2.rollout.simulator.hardware import EngineModel
from rstar2.rollout.simulator.workload import PlannedRollout, Workload


def lower_bound_s(workload: Workload, engine: EngineModel, num_engines: int) -> float:
    longest_s = max(alone_s(rollout, engine) for rollout in workload.rollouts)
    return max(work_s(workload, engine) / num_engines, longest_s)


def alone_s(rollout: PlannedRollout, engine: EngineModel) -> float:
    """The rollout on an engine of its own."""
    total_s, context = 0.0, rollout.spec.num_prompt_tokens
    for turn in rollout.turns:
        total_s += engine.decode_s(1, context, turn.num_sampled_tokens - 1) + engine.decode_s(1, 0, 1) + turn.tool_s
        context += turn.num_sampled_tokens + turn.num_appended_tokens
    return total_s


def work_s(workload: Workload, engine: EngineModel) -> float:
    """Engine seconds that no schedule can avoid."""
    num_read, num_held, num_sampled, num_appended = 0, 0, 0, 0
    prompts: dict[str, int] = {}
    for rollout in workload.rollouts:
        prompts[rollout.spec.problem] = rollout.spec.num_prompt_tokens
        response = 0
        for turn in rollout.turns:
            # The first token of a turn comes out of its prefill; the others read response, response + 1, … tokens.
            num_steps = turn.num_sampled_tokens - 1
            held = num_steps * response + num_steps * (num_steps - 1) // 2
            num_held += held
            num_read += held + num_steps * rollout.spec.num_prompt_tokens
            response += turn.num_sampled_tokens + turn.num_appended_tokens
            num_sampled += turn.num_sampled_tokens
            num_appended += turn.num_appended_tokens
    least_steps = max(num_held / engine.num_cache_tokens, num_sampled / engine.max_num_seqs)
    num_linear = num_sampled + num_appended + sum(prompts.values())
    linear_s = max(least_steps * engine.weights_s, num_linear * engine.linear_token_s)
    sampled_s = num_sampled * engine.sampled_token_s
    return num_read * engine.cached_token_s + linear_s + sampled_s + least_steps * engine.overhead_s
