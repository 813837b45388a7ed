"""Options of the data module that can produce no batch are refused."""

import pytest

from diglot.data.options import DataOptions


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tokens_per_batch": 1}, "tokens_per_batch (1)"),
        ({"batches_per_update": 0}, "batches_per_update (0)"),
        ({"eval_tokens_per_batch": 0}, "eval_tokens_per_batch (0)"),
        ({"max_len": 1}, "max_len (1)"),
        ({"n_workers": -1}, "n_workers (-1)"),
        ({"max_len": 300, "tokens_per_batch": 299}, "max_len (300) must not be above tokens_per_batch (299)"),
    ],
)
def test_values_that_make_no_batches_are_refused_by_name(options: dict, named: str) -> None:
    with pytest.raises(ValueError) as refused:
        DataOptions(**options)
    assert named in str(refused.value)
