"""What a certificate states about a run."""

import pytest

from diglot.certificates.facts import different_texts, environment_of, evenly
from diglot.errors import UserError
from support.certificates import environment


def test_lines_are_chosen_evenly_and_once() -> None:
    assert evenly(0, 50) == []
    assert evenly(3, 50) == [0, 1, 2]
    chosen = evenly(200, 50)
    assert (len(chosen), chosen[0], chosen[-1]) == (50, 0, 196)
    assert chosen == list(range(0, 200, 4))


def test_texts_differ_only_if_both_hashes_are_known() -> None:
    assert different_texts({"train": "1", "dev": "2", "test": "3"}, {"train": "1", "dev": "4"}) == ["dev"]


def test_a_run_of_an_earlier_version_has_recorded_less() -> None:
    stored = dict(environment())
    assert environment_of(stored) == environment()
    del stored["sources"], stored["machine"]
    assert environment_of(stored) == {**environment(), "sources": None, "machine": None}
    del stored["packages"]
    with pytest.raises(UserError, match=r"environment.json is damaged \(KeyError: 'packages'\)"):
        environment_of(stored)
