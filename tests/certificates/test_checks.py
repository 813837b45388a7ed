"""The checks of a certificate that need no run."""

from pathlib import Path

import pytest

from diglot.certificates import checks
from diglot.certificates.checks import (
    check_environment,
    check_summary,
    compare_losses,
    different_scores,
    find_folders,
    loss_bound,
    rounds_as_certified,
)
from diglot.certificates.content import Certificate
from support.certificates import certificate, environment, run


@pytest.fixture
def same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "environment", lambda command, contents: environment())


def statuses(content: Certificate) -> dict[str, str]:
    return {check.name: check.status for check in check_environment(content)}


@pytest.mark.usefixtures("same_machine")
def test_code_packages_and_machine_are_compared() -> None:
    content = certificate(30.0, 31.0)
    assert statuses(content) == {"code": "ok", "packages": "ok", "machine": "ok"}
    assert rounds_as_certified(content)
    content["runs"][1]["environment"]["sources"] = "b" * 64
    assert statuses(content)["code"] == "DIFFERENT"
    assert rounds_as_certified(content)  # the certification has computed the losses with the code that is here
    content["environment"]["packages"]["torch"] = "2.12.0"
    assert statuses(content)["packages"] == "DIFFERENT"
    assert not rounds_as_certified(content)


@pytest.mark.usefixtures("same_machine")
def test_the_difference_is_named() -> None:
    content = certificate()
    content["runs"][0]["environment"]["packages"]["torch"] = "2.12.0"
    found = {check.name: check.note for check in check_environment(content)}
    assert found["packages"] == "of the run with seed 1: torch 2.12.0, here 2.13.0"


@pytest.mark.usefixtures("same_machine")
def test_another_machine_is_no_difference_but_rounds_otherwise() -> None:
    content = certificate()
    machine = content["environment"]["machine"]
    assert machine is not None
    machine["cores"] = 64
    assert rounds_as_certified(content)
    machine["capability"] = "AVX512"
    assert statuses(content)["machine"] == "not checked"
    assert not rounds_as_certified(content)


@pytest.mark.usefixtures("same_machine")
def test_code_that_was_not_recorded_is_not_checked() -> None:
    content = certificate()
    content["runs"][0]["environment"]["sources"] = None
    assert statuses(content)["code"] == "not checked"


def test_the_means_are_computed_again() -> None:
    content = certificate(30.0, 31.0, 35.0)
    assert [check.status for check in check_summary(content)] == ["ok"]
    content["dev"][0]["deviation"] = 0.1
    assert [check.status for check in check_summary(content)] == ["DIFFERENT"]


@pytest.mark.parametrize(
    ("found", "bound", "status", "note"),
    [
        ([9.0, 8.5], 0.0, "ok", "2 equal bit for bit"),
        ([9.0, 8.500001], 0.0, "DIFFERENT", "update 2: 8.500001 here, 8.5 in the certificate"),
        ([9.0, 8.500001], 1e-3, "ok", "largest relative difference 1.2e-07, at most 0.001 is allowed"),
        ([9.1, 8.5], 1e-3, "DIFFERENT", "update 1: 9.1 here"),
        ([9.0, float("nan")], 1e-3, "DIFFERENT", "update 2: nan here"),
        ([9.0], 1e-3, "DIFFERENT", "1 updates, but 2 in the certificate"),
    ],
)
def test_losses_are_equal_or_within_a_bound(found: list[float], bound: float, status: str, note: str) -> None:
    check = compare_losses([9.0, 8.5], found, bound)
    assert check.status == status
    assert note in check.note


def test_the_bound_is_wider_in_low_precision() -> None:
    assert loss_bound("32-true") < loss_bound("bf16-mixed")


def test_scores_agree_in_all_digits_that_are_portable() -> None:
    scores = run()["dev"]
    assert different_scores(scores, run(bleu=30.0 + 1e-12)["dev"]) == ""
    assert different_scores(scores, run(bleu=30.00001)["dev"]) == "BLEU is 30.00001, but 30.0 in the certificate"
    other = [{**scores[0], "signature": "nrefs:2"}]
    assert different_scores(scores, other) == "the signature of BLEU is nrefs:2"  # type: ignore[arg-type]
    assert different_scores(scores, []) == "BLEU is not a metric of the run"
    assert different_scores([], scores) == "another number of metrics"


def test_a_run_is_found_in_the_folder_of_the_certificate_or_beside_it(tmp_path: Path) -> None:
    first, second = run(1), run(2)

    def made(folder: Path) -> Path:
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
        return folder

    alone = made(tmp_path / "moved" / "any name")
    assert find_folders(alone / "certificate.json", [first]) == [alone]
    beside = [made(tmp_path / "runs" / "run-1"), made(tmp_path / "runs" / "run-2")]
    assert find_folders(beside[0] / "certificate.json", [first, second]) == beside
    assert find_folders(tmp_path / "runs" / "certificate.json", [first, second]) == beside
    assert find_folders(tmp_path / "certificate.json", [first]) == [None]
