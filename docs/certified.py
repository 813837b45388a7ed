"""Print a Markdown table of all certificates in a folder: python docs/certified.py FOLDER [dev|test]."""

import sys
from pathlib import Path

from diglot.certificates.content import Certificate, Environment, read_certificate
from diglot.certificates.showing import value_of
from diglot.errors import UserError


def table(certificates: list[Certificate], split: str) -> list[str]:
    """Return the lines of a table, with a row per certificate and the metrics of all of them."""
    means = [{mean["name"]: value_of(mean) for mean in each[split]} for each in certificates]
    metrics = list(dict.fromkeys(name for of_one in means for name in of_one))
    lines = [_row(["runs", *metrics, "seeds", "commit", "machine", "command"]), _row(["---"] * (len(metrics) + 5))]
    for certificate, of_one in zip(certificates, means, strict=True):
        runs = certificate["runs"]
        environments = [run["environment"] for run in runs]
        cells = [", ".join(run["name"] for run in runs), *(of_one.get(name, "") for name in metrics), str(len(runs))]
        cells += [_joined(map(_commit, environments)), _joined(map(_machine, environments)), f"`{runs[0]['command']}`"]
        lines.append(_row(cells))
    return lines


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _joined(texts: "map[str]") -> str:
    return ", ".join(dict.fromkeys(texts))


def _commit(environment: Environment) -> str:
    return f"`{environment['commit']}`" if environment["commit"] else f"diglot {environment['diglot']}"


def _machine(environment: Environment) -> str:
    machine = environment["machine"]
    if machine is None:
        return "not recorded"
    return machine["gpu"] or f"{machine['processor']} ({machine['capability']}), {machine['threads']} threads"


def main(folder: str, split: str = "test") -> int:
    """Print the table, and return the exit status."""
    files = sorted(Path(folder).rglob("*.json"))
    if not files:
        print(f"{folder}: there are no certificates (*.json) in it", file=sys.stderr)
        return 2
    try:
        certificates = [read_certificate(file) for file in files if "diglot_certificate" in _start(file)]
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(table(certificates, split)))
    return 0


def _start(file: Path) -> str:
    """Return the start of a file. Runs have other JSON files beside their certificate."""
    with file.open("rb") as stream:
        return stream.read(100).decode("utf-8", "replace")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["dev"], ["test"]):
        sys.exit("usage: python docs/certified.py FOLDER [dev|test]")
    sys.exit(main(*sys.argv[1:]))
