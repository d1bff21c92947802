"""The language of claims: what it reads, and what it says of what it cannot read."""

from __future__ import annotations

import pytest

from pmfl.errors import SpecError
from pmfl.study.expression import Condition, Measure, parse, parse_measure


def test_a_claim_in_full() -> None:
    found = parse(
        "top5_mean(test/accuracy): pmfl[alpha=0.5, data.dataset=svhn|cifar10] > fedau, [flag=true] by 1.5 points "
        "where pattern=cyclic, model='cnn-svhn projection=moon' for each beta, seed"
    )
    assert found.measure == Measure("top5_mean", "test/accuracy")
    assert str(found.left[0]) == "pmfl[alpha=0.5, data.dataset=svhn|cifar10]"
    assert [str(one) for one in found.right] == ["fedau", "[flag=true]"]
    assert (found.relation, found.margin, found.each) == (">", 0.015, ("beta", "seed"))
    assert found.where == (
        Condition("pattern", ("cyclic",)),
        Condition("model", ("cnn-svhn projection=moon",)),
    )


def test_relations_to_numbers() -> None:
    found = parse("late_mean(weight/mean): pmfl in 20 .. 24")
    assert (found.relation, found.low, found.high, found.right) == ("in", 20.0, 24.0, ())
    assert parse("share(accuracy >= 0.8): pmfl > 0.5").low == 0.5
    assert parse("correlation(weight, rate): pmfl < -0.8").high == -0.8
    equal = parse("final(test/accuracy): a = b, c within 0.5 points")
    assert (equal.relation, equal.margin, len(equal.right)) == ("=", 0.005, 2)
    assert parse("range_of_final(test/accuracy): pmfl < 0.5 points").high == 0.005


def test_measures_say_what_they_are() -> None:
    for text in ("top5_mean(test/accuracy)", "share(loss <= 0.05)", "correlation(accuracy, weight)"):
        assert str(parse_measure(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("top6(test/accuracy): a > b", "there is no measure `top6`"),
        ("final(accuracy): a > b", "split/metric"),
        ("share(test/accuracy >= 1): a > b", "a metric of clients"),
        ("final(test/accuracy) a > b", "`:` is expected at character 22"),
        ("final(test/accuracy): a ! b", "character 24"),
        ("final(test/accuracy): a >", "a name is expected at character 26"),
        ("final(test/accuracy): a in 3 .. 2", "a range that is not empty"),
        ("final(test/accuracy): a in b", "a number is expected"),
        ("final(test/accuracy): a = b", "`within` is expected"),
        ("final(test/accuracy): a > b every seed", "`by`, `where`, `for each` or the end"),
        ("final(test/accuracy): a > b for all seed", "`each` is expected"),
        ("final(test/accuracy): a b", "`>` or `<` or `=` or `in`"),
    ],
)
def test_what_cannot_be_read_is_shown(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, "claim x")
    assert str(caught.value).startswith("claim x: ")
    assert said in str(caught.value)
