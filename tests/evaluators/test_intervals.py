import random

from evaluators.intervals import PairedCounts, paired_difference, wilson


def test_wilson_agrees_with_published_values():
    # Newcombe 1998 (single proportion), table I: 81/263 and 0/20
    assert [round(x, 4) for x in (wilson(81, 263).low, wilson(81, 263).high)] == [0.2553, 0.3662]
    assert round(wilson(0, 20).high, 4) == 0.1611


def test_paired_difference_agrees_with_a_published_value():
    # Newcombe 1998 (paired), method 10 on the table 36/12/2/0
    found = paired_difference(PairedCounts(both=36, only_new=12, only_old=2, neither=0))
    assert [round(found.low, 4), round(found.high, 4)] == [0.0569, 0.3404]


def test_paired_difference_covers_the_truth_as_often_as_it_says():
    rng = random.Random(5)
    hits = 0
    for _ in range(1000):
        drawn = rng.choices(["both", "new", "old", "neither"], [0.4, 0.3, 0.1, 0.2], k=40)
        found = paired_difference(PairedCounts(*(drawn.count(k) for k in ("both", "new", "old", "neither"))))
        hits += found.low <= 0.2 <= found.high
    assert 0.92 <= hits / 1000 <= 0.99


def test_nothing_observed_is_total_ignorance():
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    assert paired_difference(PairedCounts(0, 0, 0, 0)).low == -1.0
