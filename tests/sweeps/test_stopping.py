"""The rules of sweep.stop compare a job with the other jobs in the folder of the sweep."""

from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig, OmegaConf

from diglot.data.text import write_json
from diglot.errors import UserError
from diglot.evaluation.validation import Validation
from diglot.runs.folder import STOPPED
from diglot.sweeps.comparison import Comparison
from diglot.sweeps.job import Job
from diglot.sweeps.stopping import check_rule, rule_of, stop_with_configuration

INFLUENCES = np.random.default_rng(1).standard_normal((11, 100)) / 10


def config_of(stop: str | None = "evidence", metric: str = "Bleu", **keys: object) -> DictConfig:
    metric_node = {"bleu": {"_target_": f"diglot.evaluation.metrics.{metric}"}}
    sweep = {"stop": stop, "catch_up": 2.0, **keys}
    return OmegaConf.create(
        {"sweep": sweep, "metric": metric_node, "run": {"monitor": None, "validate_every": 100}, "objective": None}
    )


def make_job(
    folder: Path, number: int, scores: list[float], configuration: str = "", updates: int = 300, measure: str = "m"
) -> Job:
    """Write a job with validations every 100 updates. It is finished if it has all of them."""
    job = Job(folder / f"{number:02d}", number, (), (), f"h{number}", configuration or f"c{number}", "interrupted")
    job.folder.mkdir()
    for i, score in enumerate(scores, 1):
        influences = tuple(INFLUENCES[number + i % 2].tolist())
        Validation(100 * i, updates, "dev/bleu", score, measure, influences).write(job.folder)
    job.write()
    if 100 * len(scores) == updates:
        write_json(job.folder / "results.json", {"finished": True, "best": {"bleu": max(scores)}})
    return Job.read(job.folder)


def asked(job: Job, config: DictConfig) -> str | None:
    rule = rule_of(config, job.folder)
    assert rule is not None
    return rule()


def test_a_job_that_cannot_win_is_ended_and_told_why(tmp_path):
    make_job(tmp_path, 1, [10, 20, 25])
    job = make_job(tmp_path, 2, [5, 12])
    wanted = "stopped: cannot win (update 200 of 300); 8.00 behind job 1 there, and it can catch up 5.00"
    assert asked(job, config_of()) == wanted
    assert asked(job, config_of(catch_up=3.0)) is None
    assert asked(make_job(tmp_path, 3, [5, 16]), config_of()) is None


def test_a_temporary_fall_ends_no_job(tmp_path):
    make_job(tmp_path, 1, [10, 20, 25])
    assert asked(make_job(tmp_path, 2, [18, 2]), config_of()) is None


def test_where_lower_is_better_the_higher_job_is_ended(tmp_path):
    make_job(tmp_path, 1, [60, 50, 45])
    make_job(tmp_path, 2, [90, 85, 84])
    assert asked(make_job(tmp_path, 3, [90, 80]), config_of(metric="Ter")).startswith("stopped: cannot win")
    assert asked(make_job(tmp_path, 4, [50, 40]), config_of(metric="Ter")) is None


@pytest.mark.parametrize("other", [{"measure": "other"}, {"updates": 200}])
def test_jobs_of_another_dev_text_or_length_are_not_compared(tmp_path, other):
    make_job(tmp_path, 1, [10, 20, 25][: other.get("updates", 300) // 100], **other)
    assert asked(make_job(tmp_path, 2, [1, 1]), config_of()) is None


def test_an_outdated_job_is_not_compared(tmp_path):
    job = make_job(tmp_path, 1, [10, 20, 25])
    job.status = "outdated"
    job.write()
    assert asked(make_job(tmp_path, 2, [1, 1]), config_of()) is None


def test_the_other_seeds_of_a_stopped_configuration_are_not_started(tmp_path):
    first = make_job(tmp_path, 1, [1], configuration="same")
    write_json(first.folder / STOPPED, {"reason": "stopped: cannot win (update 100 of 300); far", "update": 100})
    jobs = [Job.read(first.folder), make_job(tmp_path, 2, [], configuration="same"), make_job(tmp_path, 3, [])]
    assert [stop_with_configuration(job, jobs, "evidence") for job in jobs[1:]] == [True, False]
    assert not stop_with_configuration(make_job(tmp_path, 4, [], configuration="same"), jobs, None)
    twin = Job.read(jobs[1].folder)
    assert (twin.status, twin.state) == ("stopped", "stopped: cannot win, like job 1")


def test_a_stopped_job_is_neither_failed_nor_finished_and_the_table_says_why(tmp_path):
    job = make_job(tmp_path, 1, [1])
    write_json(job.folder / STOPPED, {"reason": "stopped: cannot win (update 100 of 300); far", "update": 100})
    job = Job.read(job.folder)
    assert (job.status, job.state, job.results) == ("stopped", "stopped: cannot win (update 100 of 300)", {})
    assert Comparison([job]).job_rows()[0]["status"] == job.state
    assert Comparison([job]).rows[0].configuration.status == job.state
    (job.folder / STOPPED).unlink()  # it goes on
    job.write()
    assert Job.read(job.folder).status == "interrupted"
    for content in ("{", "[]"):
        (job.folder / STOPPED).write_text(content)
        assert Job.read(job.folder).status == "interrupted"


def test_a_job_below_the_median_is_pruned_after_five_jobs(tmp_path):
    pytest.importorskip("optuna")
    for number in range(1, 5):
        make_job(tmp_path, number, [10 + number, 20, 30])
    job = make_job(tmp_path, 9, [5])
    assert asked(job, config_of("median")) is None
    make_job(tmp_path, 5, [15, 20, 30])
    assert asked(job, config_of("median")) == "pruned: worse than the median of the jobs (update 100 of 300)"
    assert asked(make_job(tmp_path, 8, [14]), config_of("median")) is None


def test_a_run_without_a_rule_or_outside_of_a_sweep_has_none(tmp_path):
    job = make_job(tmp_path, 1, [1])
    assert rule_of(config_of(None), job.folder) is None
    (tmp_path / "run").mkdir()
    assert rule_of(config_of(), tmp_path / "run") is None


def test_a_rule_that_does_not_suit_the_objective_is_refused():
    config = config_of()
    check_rule(config)
    config.objective = "dev/loss"
    with pytest.raises(UserError, match=r"objective=dev/loss is no metric of them: type objective=dev/bleu or sweep"):
        check_rule(config)
    with pytest.raises(UserError, match=r"sweep\.catch_up=0\.5 must be at least 1"):
        check_rule(config_of(catch_up=0.5))
