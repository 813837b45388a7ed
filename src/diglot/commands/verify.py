"""diglot-verify: check a certificate against the files of its runs and against what this machine computes from them."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("verify")


import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from omegaconf import DictConfig

from diglot.certificates.checks import (
    DIFFERENT,
    NOT_CHECKED,
    Check,
    RunChecks,
    check_environment,
    check_summary,
    find_folders,
    rounds_as_certified,
)
from diglot.certificates.content import CERTIFICATE, Run, read_certificate
from diglot.certificates.making import run_folder
from diglot.commands.frame import command
from diglot.config import resolved, trusted
from diglot.data.options import DataOptions
from diglot.errors import UserError
from diglot.system.console import quiet
from diglot.system.gpu import exclude_cudnn_attention
from diglot.system.quoting import printable


@command("verify")
def main(
    *,
    certificate: str,
    checkpoint: str | list[str],
    data: Annotated[DictConfig, DataOptions] | None,
    trust: str | list[str],
) -> None:
    quiet()
    exclude_cudnn_attention()
    content = read_certificate(certificate)
    modules = trusted({"trust": trust, "data": resolved(data) if data is not None else None})
    path = Path(certificate).expanduser()
    file = path / CERTIFICATE if path.is_dir() else path
    runs = content["runs"]
    folders = typed_folders(checkpoint, runs) or find_folders(file, runs)
    is_alike = rounds_as_certified(content)
    checks = [*shown(check_environment(content)), *shown(check_summary(content))]
    for run, folder in zip(runs, folders, strict=True):
        prefix = f"seed {run['seed']}: " if len(runs) > 1 else ""
        checks += shown(RunChecks(run, folder, is_alike, data, modules, prefix))
    print("\n".join(summary(checks)))
    if any(check.status == DIFFERENT for check in checks):
        sys.exit(1)


def typed_folders(checkpoint: str | list[str], runs: Sequence[Run]) -> list[Path | None]:
    """Return the folders of the runs that the user names; an empty list if he names none.

    Raises:
        UserError: a folder holds no run, or there are not as many folders as runs.
    """
    paths = [checkpoint] if isinstance(checkpoint, str) else checkpoint
    if paths and len(paths) != len(runs):
        seeds = ", ".join(str(run["seed"]) for run in runs)
        raise UserError(f"checkpoint: the certificate has {len(runs)} runs (seeds {seeds}), but {len(paths)} are given")
    return [run_folder(path) for path in paths]


def shown(checks: Iterable[Check]) -> list[Check]:
    """Print checks as they are done, one per line, and return them."""
    done = []
    for check in checks:
        print(printable(check), flush=True)
        done.append(check)
    return done


def summary(checks: Sequence[Check]) -> list[str]:
    """Return the lines that say what differs and what was not checked."""
    different = [check.name for check in checks if check.status == DIFFERENT]
    unchecked = [check.name for check in checks if check.status == NOT_CHECKED]
    n_checked = len(checks) - len(unchecked)
    lines = [f"Nothing differs: {n_checked} of {len(checks)} were checked"]
    if different:
        lines = [f"DIFFERENT: {len(different)} of {n_checked} that were checked: {', '.join(different)}"]
    if unchecked:
        lines.append(f"Not checked: {len(unchecked)}: {', '.join(unchecked)}")
    lines.append("Never repeated: the training after its first updates, and its validations")
    return [printable(line) for line in lines]
