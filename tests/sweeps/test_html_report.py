"""The report of a sweep shows every row, is safe for any text, and works in a browser without any request."""

import base64
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from diglot.data.text import write_lines
from diglot.evaluation.repeated import Difference, Mean
from diglot.runs.folder import dev_outputs
from diglot.sweeps import sentences
from diglot.sweeps.comparison import Comparison
from diglot.sweeps.html_report import MAX_LABEL, as_html
from diglot.sweeps.job import Job
from diglot.sweeps.judgement import Judgement
from support.browser import Browser, needs_chromium
from support.jobs import REFERENCES, keep_outputs, make_job, outputs

N = len(REFERENCES)
PNG = b"\x89PNG\r\n\x1a\n" + base64.b64decode("AAAADUlIRFIAAAABAAAAAQgGAAAAHxXEiQAAAABJRU5ErkJggg==")
HOSTILE = [
    "\" ' & &amp; ${1} \\u003c \x00\x01\x1b\x7f",
    "</script><script>document.title = 'gone'</script>",
    "<!-- data --><!-- rows --><img src=x onerror=\"document.title = 'gone'\">",
    "شغّل الضوء \u202eturned",
    "w" * 3000,
]


@pytest.fixture
def accuracy(compose_train) -> DictConfig:
    return compose_train("data=sample", "metric=[accuracy,cer]")


def write_curves(job: Job, n: int = 4) -> None:
    names = "step,dev/accuracy,dev/loss,dev_old/accuracy,dev_old/cut,speed/updates_per_second"
    rows = "".join(f"{100 * i},{10.0 * i * job.number},{4.0 / i},{i}.0,0.0,2.0\n" for i in range(1, n + 1))
    (job.folder / "metrics.csv").write_text(f"{names}\n{rows}")


def translate(job: Job, lines: Sequence[str]) -> None:
    write_lines(dev_outputs(job.folder, "bol").best, lines)


def make_comparison(
    folder: Path, config: DictConfig, n_rows: int = 3, n_seeds: int = 1, label: str = "model.n_heads="
) -> Comparison:
    """Return a comparison of rows of which each has more correct outputs than the row before, and of a failed job."""
    jobs = []
    for row in range(1, n_rows + 1):
        for seed in range(1, n_seeds + 1):
            n_correct = row + 5 * seed
            numbers = {"parameters": 1000 * row, "minutes": 30.0 - row, "updates": 400, "dev_sentences_per_second": 9.5}
            best = {"accuracy": 100 * n_correct / N, "loss": 1.0}
            job = make_job(folder, len(jobs) + 1, f"{label}{row}", seed, best, **numbers)
            if jobs:  # composing and writing a config is slow
                for name in ("composed.yaml", "text"):
                    source = jobs[0].folder / name
                    (shutil.copytree if source.is_dir() else shutil.copy)(source, job.folder / name)
                translate(job, outputs(n_correct))
            else:
                keep_outputs(job, config, outputs(n_correct))
            write_curves(job)
            jobs.append(job)
    failed = make_job(folder, len(jobs) + 1, f"{label}99", 1, None, "failed")
    failed.message = "failed with exit status 2: <no such file>"
    numbers = [1 + n_seeds * row for row in range(n_rows)]
    means = {number: Mean(50.0, None, 4.0) for number in numbers}
    differences = {
        i: Difference(10.0, 2.0, 4.0, 6.0, 0.001, 0.002, 0.004 if i > n_seeds + 1 else 0.2) for i in numbers[1:]
    }
    return Comparison([*jobs, failed], Judgement(1, "accuracy", True, N, means, differences))


@pytest.fixture(scope="module")
def comparison(compose_train, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Return a comparison of three rows with one seed. Do not modify its jobs."""
    config = compose_train("data=sample", "metric=[accuracy,cer]")
    return make_comparison(tmp_path_factory.mktemp("sweep"), config)


class Parts(HTMLParser):
    """Parser that collects the tags, the cells of tables, and the data of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.lines: list[list[str]] = []
        self.data: dict[str, Any] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.lines.append([])
        elif tag in ("td", "th"):
            self.lines[-1].append("")

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if attributes.get("id") == "data" and not self.data:
            self.data = json.loads(data)
        elif tag == "bdi" or (tag == "td" and self.lines):
            self.lines[-1][-1] += data.strip()


def test_every_row_and_every_job_without_results_is_listed(tmp_path: Path, accuracy: DictConfig) -> None:
    comparison = make_comparison(tmp_path, accuracy, n_seeds=2)
    text = as_html(comparison, tmp_path, "make sweep model.n_heads=1,2,3 'x=<y>'")
    parts = Parts(text)
    head, *rows = parts.lines
    assert head == [
        *("jobs", "overrides", "status", "dev accuracy", "deviation", "difference", "p", "finding", "parameters"),
        *("minutes", "updates", "sentences/s"),
    ]
    assert rows[1] == [
        *("3-4", "model.n_heads=2", "finished", "15.83", "5.89", "+10.00 ± 4.00", "0.2000"),
        *("no difference found (6.00)", "2,000*", "28.0", "400", "9.5"),
    ]
    assert rows[2][7] == "better"
    assert rows[3][:4] == ["7", "model.n_heads=99", "failed", ""]
    assert ["7", "model.n_heads=99 seed=1", "failed", "failed with exit status 2: <no such file>"] in [
        line[:4] for line in rows
    ]
    assert "make sweep model.n_heads=1,2,3 &#x27;x=&lt;y&gt;&#x27;" in text
    assert "4 configurations that differ in model.n_heads, compared by dev accuracy" in text
    assert "Jobs: 1 failed, 6 finished." in text
    assert "Test opened by no run of this sweep" in text
    assert [curve["job"] for curve in parts.data["curves"]] == [1, 2, 3, 4, 5, 6]
    values = parts.data["curves"][2]["values"]
    assert values["accuracy"] == [30.0, 60.0, 90.0, 120.0]
    assert values["dev_old/accuracy"] == [1.0, 2.0, 3.0, 4.0]
    assert "dev_old/cut" not in values
    assert parts.data["sentences"]["jobs"] == [2, 4, 6]
    assert parts.data["rows"][1]["fronts"] == ["parameters"]


def test_the_page_names_no_address_and_forbids_all(comparison: Comparison, tmp_path: Path) -> None:
    text = as_html(comparison, tmp_path)
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": policy}) in Parts(text).tags
    for word in ("https:", "@import", " src=", " href=", "fetch(", "XMLHttp", "url("):
        assert word not in text, word
    assert text.replace("http://www.w3.org/2000/svg", "").count("http:") == 0


def test_the_same_jobs_give_the_same_bytes(tmp_path: Path, accuracy: DictConfig) -> None:
    comparison = make_comparison(tmp_path, accuracy)
    first = as_html(comparison, tmp_path, "make sweep")
    assert as_html(Comparison(comparison.jobs, comparison.judgement), tmp_path, "make sweep") == first
    write_curves(comparison.jobs[0], n=5)
    assert as_html(comparison, tmp_path, "make sweep") != first


def test_text_is_never_markup(tmp_path: Path, accuracy: DictConfig, comparison: Comparison) -> None:
    text = "".join(HOSTILE)
    hostile = make_comparison(tmp_path, accuracy, label=text)
    for job in hostile.jobs[:3]:
        translate(job, [line.replace("something", text) for line in outputs(5 + job.number)])
    hostile.jobs[3].message = text
    parts, calm = (Parts(as_html(each, tmp_path, text)) for each in (hostile, comparison))
    assert [tag for tag, _ in parts.tags] == [tag for tag, _ in calm.tags]
    assert parts.data["rows"][0]["label"] == f"{text[:MAX_LABEL]}…"
    assert any(line == f"{text[: sentences.MAX_LINE]}…" for line in parts.data["sentences"]["outputs"][0])


def test_pictures_of_a_study_are_embedded(tmp_path: Path, comparison: Comparison) -> None:
    (tmp_path / "search_history.png").write_bytes(PNG)
    (tmp_path / "search_other.png").write_bytes(b"<svg>")
    (tmp_path / "search_link.png").symlink_to(tmp_path / "search_history.png")
    images = [attributes for tag, attributes in Parts(as_html(comparison, tmp_path)).tags if tag == "img"]
    assert images == [{"src": f"data:image/png;base64,{base64.b64encode(PNG).decode()}", "alt": "search_history.png"}]


def test_a_sweep_without_results_or_without_outputs_has_a_report(tmp_path: Path, accuracy: DictConfig) -> None:
    assert "0 configurations, compared by dev BLEU. Jobs: none." in as_html(Comparison([]), tmp_path)
    jobs = [make_job(tmp_path, 1, "a=1", 1, None, "running"), make_job(tmp_path, 2, "a=2", 1, {"bleu": 3.0})]
    (jobs[1].folder / "composed.yaml").write_text("a: [")
    (jobs[1].folder / "metrics.csv").write_bytes(b"\xff\0")
    data = Parts(as_html(Comparison(jobs), tmp_path)).data
    assert (data["curves"], data["sentences"]["rows"]) == ([], [])


def test_an_outdated_job_has_no_curve(tmp_path: Path, comparison: Comparison) -> None:
    jobs = [replace(job, status="outdated") if job.number == 2 else job for job in comparison.jobs]
    data = Parts(as_html(Comparison(jobs), tmp_path)).data
    assert [curve["job"] for curve in data["curves"]] == [1, 3]


def test_the_size_of_outputs_is_bounded(tmp_path: Path, accuracy: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = make_comparison(tmp_path, accuracy)
    whole = as_html(comparison, tmp_path)
    monkeypatch.setattr(sentences, "MAX_CHARACTERS", 100)
    bounded = as_html(comparison, tmp_path)
    assert len(Parts(bounded).data["sentences"]["lines"]) == 1
    assert len(bounded) < len(whole)


# In a browser


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Callable[..., Browser]]:
    def open_page(text: str, **options: Any) -> Browser:
        chromium.open(text, **options)
        return chromium

    yield open_page
    chromium.check()


def texts(browser: Browser, selector: str) -> list[str]:
    return browser.do(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")


@needs_chromium
def test_columns_sort_and_the_chart_follows(opened, tmp_path: Path, comparison: Comparison) -> None:
    browser = opened(as_html(comparison, tmp_path))
    first = "#results tbody tr td:first-child"
    assert texts(browser, first) == ["1", "2", "3", "4"]
    column = "[...document.querySelectorAll('#results th')].find((e) => e.textContent === {!r})"
    click = "{}.firstChild.click()"
    browser.do(click.format(column.format("minutes")))
    assert browser.do(column.format("minutes") + ".ariaSort") == "descending"
    assert texts(browser, first) == ["1", "2", "3", "4"]
    browser.do(click.format(column.format("minutes")))
    assert texts(browser, first) == ["3", "2", "1", "4"]  # a job without a value comes last
    assert texts(browser, ".bars .name")[0].startswith("3: model.n_heads=3")
    browser.do(click.format(column.format("overrides")))
    assert texts(browser, first) == ["1", "2", "3", "4"]
    assert browser.do(column.format("minutes") + ".ariaSort") is None


@needs_chromium
def test_outputs_of_any_two_rows_stand_side_by_side(opened, tmp_path: Path, comparison: Comparison) -> None:
    browser = opened(as_html(comparison, tmp_path))
    assert [browser.do(f"document.querySelector('#{name}').value") for name in ("a", "b")] == ["0", "2"]
    assert texts(browser, ".sentence .text")[:4] == ["source 6", "reference 6", "something else", "reference 6"]
    assert texts(browser, ".sentence:first-child mark") == ["something else", "reference 6"]
    assert len(texts(browser, ".sentence")) == 2
    browser.choose("#a", 1)
    assert len(texts(browser, ".sentence")) == 1
    browser.do("document.querySelector('#order').value = 'a'")
    browser.choose("#b", 0)
    assert texts(browser, ".sentence .text")[2:] == ["reference 6", "something else"]
    browser.do("document.querySelector('#order').value = 'b'")
    browser.choose("#b", 0)
    assert texts(browser, ".sentence") == []


@needs_chromium
def test_rows_are_switched_off_and_values_are_shown(opened, tmp_path: Path, comparison: Comparison) -> None:
    browser = opened(as_html(comparison, tmp_path))
    lines = "document.querySelectorAll('#curves .plot:first-child .row').length"
    browser.wait(f"{lines} === 3")
    browser.do("document.querySelector('.legend input').click()")
    assert browser.do(lines) == 2
    browser.do("document.querySelector('#none').click()")
    assert browser.do(lines) == 0
    browser.do("document.querySelector('#all').click()")
    assert browser.do(lines) == 3
    browser.choose("#against", "'minutes'")
    browser.point_at("#curves .plot:first-child .row[data-row='2']", x=1.0, y=0.0)
    assert browser.text("#curves .tip") == "job 3: model.n_heads=3\nupdate 400, 3.3 minutes: 120.00"
    assert browser.do("document.querySelectorAll('#curves .plot:first-child .row.here').length") == 1
    browser.choose("#cost", "'minutes'")
    assert len(texts(browser, "#front circle")) == 3


@pytest.mark.sampled(3)
@needs_chromium
@pytest.mark.parametrize(("width", "n_rows"), [(400, 3), (1600, 1), (1000, 30)])
def test_any_text_is_shown_as_it_is_and_no_page_scrolls_sideways(
    opened, tmp_path: Path, accuracy: DictConfig, width: int, n_rows: int
) -> None:
    comparison = make_comparison(tmp_path, accuracy, n_rows=n_rows, label="".join(HOSTILE))
    for job in comparison.jobs[:-1]:
        keep_outputs(
            job, accuracy, [line.replace("something", HOSTILE[job.number % 5]) for line in outputs(job.number + 5)]
        )
    browser = opened(as_html(comparison, tmp_path, "".join(HOSTILE)), width=width)
    assert browser.do("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert browser.do("document.title").startswith("Sweep ")
    if n_rows > 1:
        assert "␀␁␛␡" in browser.text("#a")
        assert browser.do("document.querySelector('.sentence .text').dir") == "auto"
    looks = browser.do("[...document.querySelectorAll('.legend line')].map((e) => e.outerHTML)")
    assert len({*looks}) == len(looks) == n_rows
