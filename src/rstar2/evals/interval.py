"""The 95% interval of a score, clustered by problem. Pure.

Samples of one problem are alike, so the number of independent observations is between the number of problems and the
number of samples. It is estimated from how much the problems' totals scatter (the linearized variance of a ratio), and
Wilson's interval is taken at that effective size, which is corrected for the few degrees of freedom. Unlike a bootstrap
it draws no random numbers, and at 0% or 100%, where nothing scatters and a bootstrap interval has no width, each
problem counts as one observation.
"""

import math
from collections.abc import Sequence

from scipy.special import stdtrit

Z_95 = 1.959963984540054


def clustered_interval(scores: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """The interval of the weighted mean of scores in 0 to 1, given as (score, weight) of each sample, problem by
    problem."""
    clusters = [cluster for cluster in scores if sum(weight for _, weight in cluster) > 0]
    if not clusters:
        return 0.0, 1.0
    total = sum(weight for cluster in clusters for _, weight in cluster)
    mean = sum(score * weight for cluster in clusters for score, weight in cluster) / total
    return wilson(min(max(mean, 0.0), 1.0), _effective_size(clusters, mean, total))


def wilson(mean: float, size: float) -> tuple[float, float]:
    """Wilson's score interval of a share of `size` observations, which need not be an integer."""
    z2 = Z_95**2
    centre = (mean + z2 / (2 * size)) / (1 + z2 / size)
    half = Z_95 * math.sqrt(mean * (1 - mean) / size + z2 / (4 * size**2)) / (1 + z2 / size)
    low = 0.0 if mean == 0.0 else max(0.0, centre - half)
    high = 1.0 if mean == 1.0 else min(1.0, centre + half)
    return low, high


def _effective_size(clusters: Sequence[Sequence[tuple[float, float]]], mean: float, total: float) -> float:
    num_problems, num_samples = len(clusters), sum(map(len, clusters))
    if num_problems == 1:
        return 1.0
    deviations = (sum(weight * (score - mean) for score, weight in cluster) for cluster in clusters)
    variance = num_problems / (num_problems - 1) * sum(value**2 for value in deviations) / total**2
    spread = mean * (1 - mean)
    scatters = spread > 0 and variance > 0
    size = min(spread / variance, float(num_samples)) if scatters else float(num_problems)
    t_95 = float(stdtrit(num_problems - 1, 0.975))
    return max(1.0, size * (Z_95 / t_95) ** 2)
