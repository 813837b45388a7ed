"""The mean of several checkpoints of one model, as a checkpoint of its own.

Vaswani et al. (2017) translated with the mean of a run's last 5 checkpoints, or 20; Junczys-Dowmunt et al. (2016) had
done so before.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from diglot import __version__
from diglot.checkpoint import file as checkpoint
from diglot.checkpoint.huggingface_folder import is_huggingface
from diglot.checkpoint.merging import merged_weights
from diglot.checkpoint.weights import refuse_other_model
from diglot.config import without_folders
from diglot.config.composed import CONFIG
from diglot.data.text import refuse_address
from diglot.errors import UserError

# Keys of a checkpoint's record that describe its model. The others (update, scores, position in the data) describe the
# run at that update, which does not apply to a mean.
OF_THE_MODEL = ("format", *checkpoint.KINDS, "languages", "bleu_tokenizer")

Which = Literal["last", "best"]


def validation_files(folder: Path, which: Which = "last", n: int | None = None) -> list[Path]:
    """Return checkpoints of a run's validations.

    Args:
        folder: the run's folder.
        which: "last" for the most recent ones, newest first; "best" for those with the best score, best first.
        n: number of checkpoints; None for as many as the run keeps of that kind (`run.keep_last` or `run.keep_best`),
            which is also the maximum: the folder may hold more files, but not a complete series.

    Raises:
        UserError: there are fewer checkpoints than n, or one is damaged.
    """
    files = sorted(folder.glob("update_*.ckpt"), key=_update, reverse=True)
    files = [file for file in files if _update(file) >= 0]
    if not files:  # the run keeps one checkpoint of a kind
        name = f"{which}.ckpt"
        files = [folder / name] if (folder / name).is_file() else []
    if not files:
        raise UserError(f"checkpoint {folder}: the folder holds no update_N.ckpt, and no {which}.ckpt")
    records = {file: checkpoint.read(file)["diglot"] for file in (files if which == "best" else files[:1])}
    if which == "best":
        files.sort(key=_update)
        files.sort(key=lambda file: _rank(records[file]), reverse=True)
    key = f"keep_{which}"
    run = records[files[0]]["config"].get("run")
    n_kept = run.get(key, 1) if isinstance(run, dict) else 1  # configs of earlier versions lack the key
    files = files[:n_kept]
    if n is not None and len(files) < n:
        available = f"{len(files)} checkpoint{'s' if len(files) > 1 else ''}"
        raise UserError(
            f"n={n}: {folder} has only {available} of its {which} validations; "
            f"the run was trained with run.{key}={n_kept}"
        )
    return files[:n]


def _update(file: Path) -> int:
    """Return the number in a checkpoint's name, or -1."""
    number = file.stem.removeprefix("update_")
    return int(number) if number.isdigit() else -1


def _rank(record: dict[str, Any]) -> list[float]:
    """Return the key by which validations are compared (see diglot.training.checkpoint_writer).

    Older checkpoints hold only dev BLEU.
    """
    rank = record.get("dev_rank", [record.get("dev_bleu")])
    is_valid = isinstance(rank, list) and all(isinstance(score, float) for score in rank)
    return rank if is_valid else []


def refuse_output(output: Path) -> None:
    """Check that writing a checkpoint would not replace another one.

    Raises:
        UserError: the file exists, or a run gives that name to its own checkpoints.
    """
    if output.exists() or output.is_symlink():
        raise UserError(f"output={output} exists already")
    of_runs = re.fullmatch(r"(best|last|previous|update_\d+)\.ckpt", output.name)
    if of_runs and (output.parent / CONFIG).exists():
        raise UserError(f"output={output}: the run in that folder uses this name for its checkpoints; choose another")


def average(files: Sequence[Path], output: Path, trust: Collection[str] = ()) -> dict[str, Any]:
    """Write the mean of several checkpoints.

    The mean is taken over the weights that `checkpoint.load` returns. If a run keeps an exponential moving average of
    its weights, these are the averaged ones. Each weight is summed in float64 and rounded to its own type once. A value
    that is the same in all checkpoints is the same in the mean, bit for bit. Tied weights are averaged once and stay
    tied. The optimizer's state, the position in the data and the scores are left out. Memory holds the sums and one
    checkpoint at a time.

    Args:
        files: checkpoints of one model; search and config are taken from the first.
        output: the file to write.
        trust: see `checkpoint.load`.

    Returns:
        The new checkpoint's record. `mean_of` names the files, without their folders, and their updates.

    Raises:
        UserError: a file is damaged or of another model, tokenizer or language, or the mean cannot be written.
    """
    refuse_output(output)
    mean = Mean(trust)
    for file in files:
        mean.add(file)
    record = {key: mean.record[key] for key in OF_THE_MODEL if key in mean.record}
    record |= {"version": __version__, "mean_of": without_folders(mean.members)}
    record["config"] = without_folders(record["config"])
    content = {"diglot": record, "state_dict": mean.weights()}
    checkpoint.write(content, output)
    return record


class Mean:
    """Mean of checkpoints that are added one by one.

    Args:
        trust: see `checkpoint.load`.

    Attributes:
        record: record of the first checkpoint.
        members: file and update of each checkpoint.
    """

    def __init__(self, trust: Collection[str] = ()) -> None:
        self.trust = trust
        self.record: dict[str, Any] = {}
        self.members: list[dict[str, Any]] = []
        self._sums: dict[tuple[str, ...], _Sum] = {}  # by the names of a weight; tied weights have several
        self._tokenizer = ""

    def add(self, file: Path) -> None:
        """Add a checkpoint.

        Raises:
            UserError: it is incomplete, or not of the same model as the earlier ones.
        """
        content = checkpoint.read(file)
        loaded = checkpoint.rebuild(content, file, self.trust)  # checks that the weights fit the model
        state = merged_weights(content)
        weights = {names: state[names[0]] for names in tied(state)}
        try:
            if not self.members:
                self.record, self._tokenizer = loaded.record, loaded.tokenizer.digest()
                self._sums = {names: _Sum(weight) for names, weight in weights.items()}
            else:
                self._check_same_model(loaded, weights)
            for names, weight in weights.items():
                if not weight.isfinite().all():
                    raise UserError(f"{names[0]} is not finite")
                if self.members:
                    self._sums[names].add(weight, names[0])
        except UserError as error:
            raise UserError(f"checkpoint {file}: cannot be averaged: {error}") from None
        self.members.append({"file": str(file), "update": loaded.record.get("update")})

    def _check_same_model(self, loaded: checkpoint.Checkpoint, weights: dict[tuple[str, ...], Tensor]) -> None:
        """Check that a checkpoint is of the same model as the first one."""
        first_file = self.members[0]["file"]
        first_record, record = self.record, loaded.record
        for key in ("src_lang", "tgt_lang", "languages"):
            if first_record.get(key) != record.get(key):
                raise UserError(f"its {key} is {record.get(key)}, but {first_record.get(key)} in {first_file}")
        if loaded.tokenizer.digest() != self._tokenizer:
            raise UserError(f"its tokenizer differs from the one in {first_file}")
        try:
            refuse_other_model(first_record["model"], record["model"])
        except UserError as error:
            raise UserError(f"{error} (in {first_file})") from None
        if different_weights := weights.keys() ^ self._sums.keys():
            raise UserError(f"it ties other weights than {first_file}, for example {min(different_weights)[0]}")
        for names, weight in weights.items():
            if weight.dtype != self._sums[names].first.dtype:
                raise UserError(f"{names[0]} is {weight.dtype}, but {self._sums[names].first.dtype} in {first_file}")

    def weights(self) -> dict[str, Tensor]:
        """Return the mean weights. No checkpoint can be added afterwards."""
        means: dict[str, Tensor] = {}
        while self._sums:
            names, total = self._sums.popitem()  # one by one, so that the next mean can reuse the memory
            means |= dict.fromkeys(names, total.mean(len(self.members)))
        return means


class _Sum:
    """Sum of one weight over checkpoints, in float64, so that rounding to the weight's own type happens only once."""

    def __init__(self, first: Tensor) -> None:
        self.first, self.total = first, first.to(torch.float64, copy=True)
        self.agrees = torch.ones_like(first, dtype=torch.bool)

    def add(self, value: Tensor, name: str) -> None:
        self.agrees &= value == self.first
        if not value.is_floating_point() and not self.agrees.all():
            raise UserError(f"{name} holds integers that differ between checkpoints")
        self.total += value

    def mean(self, n: int) -> Tensor:
        # In float64, the sum of n equal numbers divided by n may differ from the number.
        return torch.where(self.agrees, self.first, (self.total / n).to(self.first.dtype))


def tied(state: dict[str, Tensor]) -> list[tuple[str, ...]]:
    """Return the names of a state's weights, in order, with those of tied weights together."""
    groups: dict[Any, list[str]] = {}
    for name, value in state.items():
        # The storage alone is not enough: all weights of a GRU may lie in one.
        groups.setdefault((value.data_ptr(), value.dtype, value.shape, value.stride()), []).append(name)
    return [tuple(names) for names in groups.values()]


def members_of(checkpoints: str | Sequence[str], which: Which | None, n: int | None) -> list[Path]:
    """Return the checkpoint files that a run's folder with `which` and `n`, a single file, or a list of files names.

    Raises:
        UserError: there are no files or too few, or `which` or `n` is given together with files.
    """
    if n is not None and n < 1:
        raise UserError(f"n={n}: must be positive")
    if isinstance(checkpoints, str):
        refuse_address("checkpoint", checkpoints)
        folder = Path(checkpoints).expanduser()
        if folder.is_dir() and not is_huggingface(folder):
            return validation_files(folder, which or "last", n)
        checkpoints = [checkpoints]
    for key, value in (("which", which), ("n", n)):
        if value is not None:
            raise UserError(f"{key}={value}: applies only to a run's folder, but checkpoint names files")
    if not checkpoints:
        raise UserError("checkpoint=[]: name at least one file")
    return [checkpoint.find(path) for path in checkpoints]
