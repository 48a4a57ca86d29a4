"""Statistics over seeds: mean and spread of an arm, and the gain of one arm over another, paired seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy import stats


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation (n - 1 in the denominator) of n numbers; None where n is too small for it."""

    mean: float | None
    sd: float | None
    n: int


@dataclass(frozen=True)
class Gain(Summary):
    """A difference paired over seeds: its mean, the sd of the n differences and the 95 % t interval of the mean."""

    low: float | None
    high: float | None

    @property
    def beyond_spread(self) -> bool | None:
        """Whether the interval leaves out 0: the difference is larger than the seeds' spread; None for one seed."""
        return None if self.low is None else self.low > 0 or self.high < 0


def summary(values: Iterable[float]) -> Summary:
    """Mean and sd of some numbers."""
    values = list(values)
    return Summary(fmean(values) if values else None, stdev(values) if len(values) > 1 else None, len(values))


def paired_gain(ours: Mapping[int, float], base: Mapping[int, float]) -> Gain:
    """mean(d) -+ t(0.975, n - 1) sd(d) / sqrt(n) of d = ours - base, over the seeds {seed: value} that both have."""
    found = summary(ours[seed] - base[seed] for seed in sorted(ours.keys() & base.keys()))
    if found.sd is None:
        return Gain(found.mean, None, found.n, None, None)
    half = float(stats.t.ppf(0.975, found.n - 1)) * found.sd / found.n**0.5
    return Gain(found.mean, found.sd, found.n, found.mean - half, found.mean + half)
