"""Jobs that differ by their seed alone are one configuration."""

from pathlib import Path

import pytest

from diglot.config import hash_without_seed
from diglot.sweeps.configuration import configurations, metric_columns
from diglot.sweeps.sweep import Objective, Sweep
from support.jobs import make_job


def test_jobs_that_differ_by_their_seed_alone_are_one_row(tmp_path: Path) -> None:
    scores = {1: ("a=1", 10.0), 2: ("a=2", 30.0), 3: ("a=1", 12.0), 4: ("a=1", 17.0), 5: ("a=2", None), 6: ("a=1", 9.0)}
    jobs = [
        make_job(tmp_path, number, override, number, None if bleu is None else {"bleu": bleu}, minutes=number)
        for number, (override, bleu) in scores.items()
    ]
    first, second = configurations(jobs[:5])
    assert (first.label, first.name, first.numbers, first.seeds) == ("a=1", "jobs 1,3-4", "1,3-4", 3)
    assert (first.score("bleu"), first.deviation("bleu"), first.mean("minutes")) == (
        13.0,
        pytest.approx(13**0.5),
        8 / 3,
    )
    assert (second.label, second.seeds, second.score("bleu"), second.deviation("bleu")) == ("a=2", 1, 30.0, None)
    assert second.score("chrf") is None
    assert first.checkpoint("bleu", True) == str(tmp_path / "04" / "best.ckpt")
    assert first.checkpoint("bleu", False) == str(tmp_path / "01" / "best.ckpt")
    assert configurations(jobs)[0].numbers == "1,3-4,6"


def test_the_scores_of_further_dev_sets_have_columns(tmp_path: Path) -> None:
    names = ["dev_old/chrf", "dev_old/loss", "dev_old/perplexity", "dev_old/cut", "bleu", "chrf", "loss", "update"]
    job = make_job(tmp_path, 1, best=dict.fromkeys(names, 1.0))
    assert metric_columns([job]) == {"bleu": "dev BLEU", "chrf": "chrF++", "dev_old/chrf": "dev_old chrF++"}
    assert list(metric_columns([job], "dev_old/chrf").values()) == ["dev_old chrF++", "BLEU", "chrF++"]


def test_the_status_of_a_row_is_that_of_its_jobs(tmp_path: Path) -> None:
    jobs = [make_job(tmp_path, n, "a=1", n, {"bleu": 1.0} if n == 1 else None, "finished") for n in (1, 2)]
    jobs[1].status = "failed"
    (row,) = configurations(jobs)
    assert (row.label, row.status) == ("a=1", "1 of 2 finished")
    assert [each.status for each in configurations(jobs[1:])] == ["failed"]


def test_a_job_of_an_earlier_version_is_a_row_of_its_own(tmp_path: Path) -> None:
    for number in (1, 2):
        record = make_job(tmp_path, number, "a=1", number).folder / "job.json"
        record.write_text(record.read_text().replace('"configuration": "a=1",', ""))
    assert len(configurations(Sweep(tmp_path, Objective("dev/bleu")).jobs)) == 2


def test_configs_that_differ_by_the_seed_alone_have_the_same_hash(compose_train) -> None:
    hashes = [hash_without_seed(compose_train(*words)) for words in (("seed=1",), ("seed=2",), ("model.d_ff=64",))]
    assert hashes[0] == hashes[1] != hashes[2]
