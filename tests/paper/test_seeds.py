"""Means, spreads and paired gains over seeds against numbers whose answer is known beforehand."""

import math

import pytest
from scipy import stats

from gmmvit.paper.seeds import Gain, Summary, paired_gain, summary


def test_summary_of_few_numbers_has_no_invented_spread():
    assert summary([]) == Summary(None, None, 0)
    assert summary([3.5]) == Summary(3.5, None, 1)
    found = summary([1.0, 2.0, 6.0])
    assert (found.mean, found.n) == (3.0, 3) and found.sd == pytest.approx(math.sqrt(7))


def test_gain_is_paired_over_the_seeds_both_have():
    ours, base = {0: 61.0, 1: 71.5, 2: 66.2, 3: 99.0}, {2: 65.0, 0: 60.0, 1: 70.0, 7: 0.0}
    found = paired_gain(ours, base)
    reference = stats.ttest_rel([61.0, 71.5, 66.2], [60.0, 70.0, 65.0]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    assert found.mean == pytest.approx(3.7 / 3) and found.n == 3
    assert found.beyond_spread is True  # though the seeds of one arm lie 10 points apart


def test_gain_within_the_spread_and_gain_of_one_seed():
    assert paired_gain({0: 1.0, 1: 3.0}, {0: 2.0, 1: 1.0}).beyond_spread is False
    assert paired_gain({0: 1.0, 1: 1.1}, {0: 2.0, 1: 2.1}).beyond_spread is True
    assert paired_gain({0: 1.5}, {0: 1.0}) == Gain(0.5, None, 1, None, None)
    assert paired_gain({0: 1.5}, {0: 1.0}).beyond_spread is None
    assert paired_gain({0: 1.5}, {1: 1.0}) == Gain(None, None, 0, None, None)
