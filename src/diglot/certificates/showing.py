"""The HTML page and the text of a certificate. The page is certificate.html in this folder, with the content filled in.

The page only shows the certificate: what is checked is the JSON file beside it.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from diglot.certificates.content import CERTIFICATE, Certificate, Environment, Mean, Run, Training
from diglot.system.console import render
from diglot.system.pages import escaped, template


def page(certificate: Certificate) -> str:
    """Return the page of a certificate."""
    runs = certificate["runs"]
    names = ", ".join(run["name"] for run in runs)
    content = "\n".join([*_summary(certificate), *(line for run in runs for line in _run(run, len(runs)))])
    head, tail = template(Path(__file__).with_name("certificate.html")).split("<!-- content -->")
    return head.replace("<!-- title -->", escaped(f"Certificate of {names}")) + content + tail


def scores_as_text(certificate: Certificate) -> list[str]:
    """Return the means and standard deviations as lines to print."""
    n_runs = len(certificate["runs"])
    table = Table(title="One run" if n_runs == 1 else f"Mean of {n_runs} runs", title_justify="left")
    for name in ("", *(mean["name"] for mean in certificate["dev"])):
        table.add_column(name, justify="right" if name else "left")
    for split in ("dev", "test"):
        if means := certificate[split]:  # type: ignore[literal-required]
            table.add_row(split, *map(value_of, means))
    return [*render(table), *filter(None, [certificate["note"]])]


def value_of(mean: Mean) -> str:
    """Return a mean with its standard deviation."""
    deviation = "" if mean["deviation"] is None else f" ± {mean['deviation']:.2f}"
    return f"{mean['mean']:.2f}{deviation}"


def _summary(certificate: Certificate) -> Iterator[str]:
    runs = certificate["runs"]
    yield f"<p>To check it, type: <code>make verify certificate={CERTIFICATE}</code></p>"
    yield "<h2>Scores</h2>"
    if certificate["note"] is not None:
        yield f'<p class="note">{escaped(certificate["note"])}</p>'
    for split in ("dev", "test"):
        means: Sequence[Mean] = certificate[split]  # type: ignore[literal-required]
        if not means:
            continue
        of_runs = [run["dev"] if split == "dev" else run["test"]["scores"] if run["test"] else [] for run in runs]
        rows = [
            [f"seed {run['seed']}", *(f"{score['value']:.2f}" for score in scores)]
            for run, scores in zip(runs, of_runs, strict=True)
        ]
        last = [["mean ± standard deviation", *map(value_of, means)]] if len(runs) > 1 else []
        yield from _table([split, *(mean["name"] for mean in means)], [*rows, *last], numbers=True)
    signatures = {score["name"]: score["signature"] for score in runs[0]["dev"]}
    yield from _table(["metric", "signature"], signatures.items())
    yield "<h2>Code, packages and machine of the certification</h2>"
    yield from _environment(certificate["environment"])


def _run(run: Run, n_runs: int) -> Iterator[str]:
    yield f"<h2>{escaped(run['name'])}: seed {run['seed']}</h2>"
    yield f'<code class="command">{escaped(run["command"])}</code>'
    facts: dict[str, Any] = {
        "languages": "-".join(run["languages"]),
        "parameters": f"{run['parameters']:,}",
        **_training(run.get("training")),
        "updates": f"{run['updates']:,}, the best checkpoint is of update {run['best_update']:,}",
    }
    if run["test"] is not None:
        openings = ", ".join(f"{command} {times}" for command, times in run["test"]["openings"].items())
        facts["test opened"] = openings or "not recorded"
    yield from _table(["", ""], facts.items())
    yield "<h3>Text and files (SHA-256)</h3>"
    texts = {f"{split} text, as read": digest for split, digest in run["text"].items()}
    yield from _table(["", ""], {**texts, **run["files"]}.items(), is_code=True)
    updates = run["first_updates"]
    yield "<h3>Losses</h3>"
    if updates["missing"] is not None:
        yield f'<p class="note">No losses of the first updates: {escaped(updates["missing"])}</p>'
    else:
        on = f"{updates['device']}, {_threads(updates['threads'])}, {updates['precision']}"
        rows = [[str(i), repr(loss)] for i, loss in enumerate(updates["losses"], start=1)]
        yield from _table(["update", f"training loss ({on})"], rows, numbers=True)
    if run["validations"]:
        rows = [[f"{each['update']:,}", f"{each['loss']:.4f}"] for each in run["validations"]]
        yield from _table(["update", "dev loss"], rows, numbers=True)
    yield "<h3>Code, packages and machine of the training</h3>"
    yield from _environment(run["environment"])


def _training(training: Training | None) -> dict[str, str]:
    """Return what was trained, as rows of a table."""
    if training is None:
        return {}
    facts = {"trained parameters": f"{training['trained_parameters']:,}", "frozen": ", ".join(training["freeze"])}
    facts["learning rates"] = ", ".join(f"{part} x {factor:g}" for part, factor in training["learning_rates"].items())
    if (lora := training["lora"]) is not None:
        facts["adapters"] = f"LoRA of rank {lora['rank']} (alpha {lora['alpha']:g}) on {', '.join(lora['on'])}"
        facts["trained beside adapters"] = ", ".join(lora["train"])
    facts["started from (SHA-256)"] = training["init_from"] or ""
    return {name: text for name, text in facts.items() if text}


def _environment(environment: Environment) -> Iterator[str]:
    versions = {"python": environment["python"], **environment["packages"]}
    facts: dict[str, Any] = {
        "diglot": f"{environment['diglot']}, commit {environment['commit'] or 'unknown'}",
        "sources (SHA-256)": environment["sources"] or "not recorded",
        "packages": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    if (machine := environment["machine"]) is not None:
        cores = f"{machine['capability']}, {machine['cores']} cores, {_threads(machine['threads'])}"
        facts["processor"] = f"{machine['processor']} ({cores})"
        facts["GPU"] = machine["gpu"] or "none"
        facts["system"] = machine["system"]
    yield from _table(["", ""], facts.items())


def _threads(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"


def _table(
    names: Sequence[str], rows: Iterable[Iterable[str]], numbers: bool = False, is_code: bool = False
) -> Iterator[str]:
    """Yield a table.

    Args:
        names: names of the columns; no heads if all are empty.
        rows: texts of the cells.
        numbers: whether all columns but the first hold numbers.
        is_code: whether all columns but the first hold hashes.
    """
    kind = ' class="number"' if numbers else ""
    yield '<div class="wide"><table>'
    if any(names):
        heads = [f"<th{kind if i else ''}>{escaped(name)}</th>" for i, name in enumerate(names)]
        yield f"<tr>{''.join(heads)}</tr>"
    for first, *others in rows:
        shown = [f"<code>{escaped(cell)}</code>" if is_code else escaped(cell) for cell in others]
        cells = "".join(f"<td{kind}>{cell}</td>" for cell in shown)
        yield f"<tr><th>{escaped(first)}</th>{cells}</tr>"
    yield "</table></div>"
