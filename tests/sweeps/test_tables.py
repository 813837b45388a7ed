"""The tables of a sweep's comparison contain every value, and can be read by what they are for."""

import csv
import io
from pathlib import Path

import pytest

from diglot.evaluation.repeated import Difference, Mean
from diglot.sweeps.comparison import Comparison
from diglot.sweeps.judgement import Judgement
from diglot.sweeps.tables import as_csv, as_latex, as_markdown, as_text, jobs_as_csv
from support.jobs import make_job


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """Return a comparison of three configurations, of which the last one has failed."""
    jobs = []
    for override, base in (("a=1", 10.0), ("b='x_$|y'", 20.0)):
        for seed in (1, 2):
            numbers = {"parameters": 3_600_000 + int(base), "minutes": base, "tokens_per_second": 1234.5}
            numbers |= {"dev_sentences_per_second": 2000 - base}
            best = {"bleu": base + seed, "chrf": 2 * base, "perplexity": 4.5}
            jobs.append(make_job(tmp_path, len(jobs) + 1, override, seed, best, **numbers))
    jobs.append(make_job(tmp_path, 5, "c=3", 1, status="failed"))
    found = Difference(10.0, 0.2, 0.4444444, 0.6, 0.0011111, 0.0022222, 0.0044444)
    unknown = Difference(-0.1, 0.2, 0.4, 0.654, 0.5, 0.6, 0.7)
    means = {1: Mean(11.5, 0.7, 0.5), 3: Mean(21.5, 0.7, 0.5)}
    return Comparison(jobs, Judgement(1, "bleu", True, 1000, means, {3: found, 5: unknown}))


def test_csv_has_a_line_for_each_configuration_and_each_job(comparison: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(comparison))))
    assert [row["jobs"] for row in rows] == ["1-2", "3-4", "5"]
    second = rows[1]
    assert (second["overrides"], second["status"], second["seeds"]) == ("b='x_$|y'", "finished", "2")
    assert (second["dev BLEU"], second["dev BLEU deviation"], second["margin"]) == ("21.5", "0.707107", "0.5")
    assert (second["difference"], second["difference margin"], second["finding"]) == ("10.0", "0.444444", "better")
    assert (second["p bootstrap"], second["p randomisation"], second["p"]) == ("0.001111", "0.002222", "0.004444")
    assert (second["standard error"], second["smallest difference"]) == ("0.2", "0.6")
    assert (second["front of parameters"], second["front of minutes"], rows[2]["front of minutes"]) == (
        *("True", "True", "False"),
    )
    assert second["checkpoint"].endswith("04/best.ckpt")
    jobs = list(csv.DictReader(io.StringIO(jobs_as_csv(comparison))))
    assert [(row["job"], row["overrides"], row["dev BLEU"]) for row in jobs[2:]] == [
        ("3", "b='x_$|y' seed=1", "21.0"), ("4", "b='x_$|y' seed=2", "22.0"), ("5", "c=3 seed=1", "")
    ]  # fmt: skip
    assert as_csv(Comparison([])) == jobs_as_csv(Comparison([])) == "jobs\n"


def test_markdown_and_latex_show_overrides_letter_by_letter(comparison: Comparison) -> None:
    lines = as_markdown(comparison).splitlines()
    assert lines[3].startswith(
        r"| 3-4 | `b='x_$\|y'` | finished | 21.50 ± 0.71 | 40.00 ± 0.00 | +10.00 ± 0.44 | 0.0044 | better | 4.50 |"
    )
    assert "| no difference found (0.65) |" in lines[4]
    assert r"- \*: no row has a better score" in lines[-2]
    latex = as_latex(comparison)
    assert latex.count("\n\\begin{tabular}{lrrrrlrrr}\n\\toprule\n") == 1
    assert r"\texttt{b=\textquotesingle{}x\_\$|y\textquotesingle{}} & 21.50 $\pm$ 0.71 &" in latex
    assert r"\textbf{$+$10.00 $\pm$ 0.44} & 0.0044 & better & 3,600,020$^{*}$ & 20.0$^{*}$ & 1,980.0$^{*}$ \\" in latex
    assert r"$-$0.10 $\pm$ 0.40 & 0.7000 & no difference found (0.65)" in latex


def test_the_table_of_a_terminal_has_80_columns(comparison: Comparison) -> None:
    text = as_text(comparison)
    assert max(map(len, text.splitlines())) <= 80
    for part in (
        "1-2",
        "3-4",
        "21.50 ± 0.71",
        "+10.00 ± 0.44",
        "p 0.0044",
        "better",
        "baseline",
        "failed",
        "3.60* M",
        "1,980* sent/s",
    ):
        assert part in text
    words = " ".join(text.split())
    assert "no difference" in text
    assert "found (0.65)" in text
    assert "In brackets: the smallest difference that would be found with a probability of 80%" in words


def test_long_overrides_leave_the_other_columns_whole(tmp_path: Path) -> None:
    best = {"bleu": 10.0, "perplexity": 4.5}
    long = "scheduler.learning_rate_of_the_model_in_the_middle=0.000123 " * 3
    jobs = [make_job(tmp_path, i, f"{long}a={i}", 1, best, parameters=10**8, minutes=1234.5) for i in (1, 2)]
    difference = Difference(-10.01, 0.2, 10.44, 10.65, 0.5, 0.6, 0.7)
    text = as_text(Comparison(jobs, Judgement(1, "bleu", True, 1000, {}, {2: difference})))
    assert max(map(len, text.splitlines())) <= 80
    for part in ("-10.01 ± 10.44", "p 0.7000", "100.00* M", "1,234.5* min", "10.00"):
        assert part in text
