"""Checks of a certificate against the runs that it describes, on any machine."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf

from diglot.certificates.content import Certificate, Environment, Run, Score
from diglot.certificates.facts import BEST, TOKENIZERS, RunFolder, different_texts, environment_of, training_of
from diglot.certificates.making import means, note
from diglot.checkpoint import file as checkpoints
from diglot.config import build_corpus, check_run_config, read_config
from diglot.data.corpus import Corpus
from diglot.data.options import DataOptions
from diglot.decoding import BeamSearch
from diglot.errors import UserError
from diglot.runs.first_updates import N_UPDATES, first_losses
from diglot.runs.folder import CONFIG, environment, refuse_links
from diglot.system.machine import rounds_alike, using_threads
from diglot.system.masking import in_one_line, shortened
from diglot.system.progress import step

DIGITS = 9  # decimal digits of scores that must agree; the last ones of a float depend on the system's library
# With other code, packages, processor or number of threads than at the certification, results are rounded otherwise.
MIN_EQUAL_LINES = 0.9
MAX_LOSS_DIFFERENCE = {"32-true": 1e-3, "64-true": 1e-3}  # relative, by precision
MAX_LOSS_DIFFERENCE_LOW = 5e-2  # in other precisions


Status = Literal["ok", "DIFFERENT", "not checked"]
OK: Status = "ok"
DIFFERENT: Status = "DIFFERENT"
NOT_CHECKED: Status = "not checked"


class Check(NamedTuple):
    """The outcome of a check.

    Attributes:
        name: what was checked.
        status: ok, DIFFERENT or not checked.
        note: details; why it was not checked.
    """

    name: str
    status: Status
    note: str = ""

    def __str__(self) -> str:
        return f"{self.status:<11}  {self.name}" + (f" ({self.note})" if self.note else "")


@dataclass
class RunChecks:
    """The checks of one run.

    Args:
        run: what the certificate states.
        folder: the run's folder; None: it was not found.
        is_alike: whether code, packages and machine are those of the certification.
        data: the config's node of the corpus; None: that in the run's config.
        trust: the user's own modules whose classes the run names.
        prefix: start of the names of the checks.

    Attributes:
        status: the outcome for each file of the folder.
        has_same_corpus: whether the corpus was read, and its text is that of the run.
    """

    run: Run
    folder: Path | None
    is_alike: bool
    data: DictConfig | None
    trust: Collection[str]
    prefix: str = ""
    status: dict[str, str] = field(default_factory=dict)
    has_same_corpus: bool = False

    def __iter__(self) -> Iterator[Check]:
        """Yield the checks as they are done, the fast ones first."""
        checks: list[tuple[str, Callable[[], Check | None]]] = [
            ("trained weights", self._training),
            ("init_from", self._initial),
            ("dev scores", lambda: self._scores("dev")),
            ("test scores", lambda: self._scores("test")),
            ("test openings", self._openings),
            ("dev losses of validations", self._validations),
            ("translations of dev lines", self._translations),
            (f"losses of the first {N_UPDATES} updates", self._first_updates),
        ]
        if self.folder is None:
            names = [*self.run["files"], *(name for name, _ in checks)]
            reason = f"there is no folder {self.run['name']} here: name it with checkpoint=FOLDER"
            yield from (Check(self.prefix + name, NOT_CHECKED, reason) for name in names)
            return
        refuse_links(self.folder)
        yield from self._files()
        yield from self._corpus_text()
        for name, check in checks:
            try:
                done = check()
            except Exception as error:  # the folder may come from anybody, and its content may make anything fail
                done = Check(name, NOT_CHECKED, in_one_line(error))
            if done is not None:
                yield done._replace(name=self.prefix + name)

    @cached_property
    def kept(self) -> RunFolder:
        """The run's folder."""
        assert self.folder is not None
        return RunFolder(self.folder, *self.run["languages"])

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """The record of the run's best checkpoint."""
        self._need(BEST)
        record: Mapping[str, Any] = checkpoints.read(self.kept.path / BEST)["diglot"]
        return record

    def _files(self) -> Iterator[Check]:
        found = self.kept.files()
        for path, expected in self.run["files"].items():
            self.status[path] = OK if found.get(path) == expected else DIFFERENT
            reason = "" if path in found else "the file is missing"
            yield Check(self.prefix + path, OK if self.status[path] == OK else DIFFERENT, reason)

    def _need(self, *paths: str) -> None:
        """Check that files are those of the certificate, before something is computed from them.

        Raises:
            UserError: a file is not.
        """
        for path in paths:
            if path not in self.status:
                raise UserError(f"the certificate has no hash of {path}")
            if self.status[path] != OK:
                raise UserError(f"{path} is not that of the certificate")

    def _training(self) -> Check | None:
        """Compare what was trained with the config, and count the weights in the checkpoint's model."""
        stated = self.run.get("training")
        if stated is None:  # a certificate of an earlier version
            return None
        self._need(CONFIG, BEST)
        config = read_config(self.kept.path / CONFIG)
        check_run_config(config, self.trust)
        loaded = checkpoints.load(self.kept.path / BEST, self.trust)
        found = training_of(config, loaded, stated["init_from"])
        if differing := [key for key, value in stated.items() if found[key] != value]:  # type: ignore[literal-required]
            key = differing[0]
            note = f"{key} is {found[key]}, but {stated[key]} in the certificate"  # type: ignore[literal-required]
            return Check("", DIFFERENT, shortened(note, 200))
        return Check("", OK, f"{stated['trained_parameters']:,} of {self.run['parameters']:,}")

    def _initial(self) -> Check | None:
        """Compare the checkpoint that the run started from, if it is here."""
        stated = self.run.get("training")
        if stated is None or stated["init_from"] is None:
            return None
        self._need(CONFIG)
        path = str(read_config(self.kept.path / CONFIG).get("init_from"))
        is_same = checkpoints.digest(checkpoints.find(path)) == stated["init_from"]
        return Check("", OK if is_same else DIFFERENT, path)

    def _need_text(self, split: str) -> None:
        self._need(*self.kept.text(split))

    def _scores(self, split: Literal["dev", "test"]) -> Check | None:
        expected = self.run["dev"] if split == "dev" else self.run["test"] and self.run["test"]["scores"]
        if not expected:
            return None
        self._need_text(split)
        self._need(self.kept.outputs(split))
        found = self.kept.scores(split, self.record)
        reason = different_scores(expected, found)
        shown = ", ".join(f"{score['name']} {score['value']:.2f}" for score in found)
        return Check("", DIFFERENT if reason else OK, reason or shown)

    def _openings(self) -> Check | None:
        if self.run["test"] is None:
            return None
        self._need_text("test")
        found, expected = self.kept.openings(), self.run["test"]["openings"]
        n = sum(found.values())
        counts = f"opened {n} {'time' if n == 1 else 'times'}"
        if found == expected:
            return Check("", OK, counts)
        return Check("", DIFFERENT, f"{counts}, {sum(expected.values())} at the certification")

    def _validations(self) -> Check:
        found = self.kept.validations()
        if not found and not self.run["validations"]:
            return Check("", NOT_CHECKED, "the run has logged none")
        if not found:
            return Check("", NOT_CHECKED, "the run's curves are not here")
        if found == self.run["validations"]:
            return Check("", OK, f"{len(found)} as logged by the run")
        pairs = zip(found, self.run["validations"], strict=False)
        update = next((a["update"] for a, b in pairs if a != b), None)
        return Check("", DIFFERENT, f"first at update {update:,}" if update else "another number of validations")

    def _translations(self) -> Check:
        stated, kept = self.run["first_updates"], self.kept
        self._need(BEST, kept.outputs("dev"))
        self._need_text("dev")
        loaded = checkpoints.load(kept.path / BEST, self.trust)
        if not isinstance(loaded.search, BeamSearch):
            raise UserError(f"{type(loaded.search).__name__} draws at random")
        device = self._device()
        with using_threads(stated["threads"]) as threads:
            n, n_different, n_near_ties = kept.retranslation(loaded, device)
        counts = f"{n - n_different} of {n} equal"
        if n_near_ties:
            counts += f"; {n_near_ties} of the others are near ties"
        if self._is_exact(device, threads):
            return Check("", OK if n_different == n_near_ties else DIFFERENT, counts)
        is_ok = n - n_different >= MIN_EQUAL_LINES * n
        return Check("", OK if is_ok else DIFFERENT, f"{counts}; at least {MIN_EQUAL_LINES:.0%} must be")

    def _device(self) -> str:
        """Return the device of the certification, or the CPU if there is no such device here."""
        return self.run["first_updates"]["device"] if torch.cuda.is_available() else "cpu"

    def _is_exact(self, device: str, threads: int) -> bool:
        """Return whether results on a device are rounded as they were by the certification."""
        stated = self.run["first_updates"]
        return self.is_alike and (device, threads) == (stated["device"], stated["threads"])

    def _corpus(self) -> tuple[Mapping[str, Any], Corpus, str]:
        """Return the run's config, its corpus, and the folder for prepared data, which that config does not choose."""
        self._need(CONFIG)
        config = read_config(self.kept.path / CONFIG)
        if self.data is not None:
            return config, build_corpus(self.data), self.data.cache_dir
        check_run_config(config, self.trust)
        return config, build_corpus(OmegaConf.create(dict(config["data"]))), DataOptions.cache_dir

    def _corpus_text(self) -> Iterator[Check]:
        """Compare the text of each split with the corpus as it is read now."""
        found, reason = {}, "the corpus has no such text now"
        try:
            _, corpus, cache_dir = self._corpus()
            found = {split: text.digest() for split, text in corpus.read_checked(Path(cache_dir)).items()}
        except Exception as error:  # see __iter__
            reason = f"{in_one_line(error)}; if the text is elsewhere, type data=... as for the training"
        for split, expected in self.run["text"].items():
            status: Status = NOT_CHECKED if split not in found else OK if found[split] == expected else DIFFERENT
            yield Check(f"{self.prefix}{split} text of the corpus", status, reason if split not in found else "")
        self.has_same_corpus = bool(found) and not different_texts(self.run["text"], found)

    def _first_updates(self) -> Check:
        stated = self.run["first_updates"]
        if not stated["losses"]:
            raise UserError(f"not in the certificate: {stated['missing']}")
        self._need(*(name for name in TOKENIZERS if name in self.run["files"]))
        config, corpus, cache_dir = self._corpus()
        if not self.has_same_corpus:
            raise UserError("the text of the corpus is not that of the certificate, or is not here")
        device, tokenizer = self._device(), self.kept.tokenizer(self.record)
        with using_threads(stated["threads"]) as threads, step(f"training the first {N_UPDATES} updates"):
            found = first_losses(config, corpus, tokenizer, cache_dir, device, self.trust)
        bound = 0.0 if self._is_exact(device, threads) else loss_bound(stated["precision"])
        return compare_losses(stated["losses"], found, bound)


def compare_losses(expected: Sequence[float], found: Sequence[float], bound: float) -> Check:
    """Compare losses with those of a certificate.

    Args:
        expected: the certificate's.
        found: those computed here.
        bound: largest relative difference.
    """
    if len(found) != len(expected):
        return Check("", DIFFERENT, f"{len(found)} updates, but {len(expected)} in the certificate")
    differences = [abs(a - b) / max(abs(b), 1e-9) for a, b in zip(found, expected, strict=True)]
    beyond = [i for i, difference in enumerate(differences) if not difference <= bound]  # also if it is NaN
    if beyond:
        i = beyond[0]
        return Check("", DIFFERENT, f"update {i + 1}: {found[i]!r} here, {expected[i]!r} in the certificate")
    if not any(differences):
        return Check("", OK, f"{len(found)} equal bit for bit")
    return Check("", OK, f"largest relative difference {max(differences):.1e}, at most {bound:g} is allowed")


def loss_bound(precision: str) -> float:
    """Return the largest relative difference of losses that other rounding explains."""
    return MAX_LOSS_DIFFERENCE.get(precision, MAX_LOSS_DIFFERENCE_LOW)


def different_scores(expected: Sequence[Score], found: Sequence[Score]) -> str:
    """Return the first difference between scores; an empty text if there is none."""
    by_name = {score["name"]: score for score in found}
    for score in expected:
        other = by_name.get(score["name"])
        if other is None:
            return f"{score['name']} is not a metric of the run"
        if round(score["value"], DIGITS) != round(other["value"], DIGITS):
            return f"{score['name']} is {other['value']!r}, but {score['value']!r} in the certificate"
        if score["signature"] != other["signature"]:
            return f"the signature of {score['name']} is {other['signature']}"
    return "" if len(expected) == len(found) else "another number of metrics"


def check_environment(certificate: Certificate) -> Iterator[Check]:
    """Compare code, packages and machine with those here."""
    here = environment_of(environment([], {}))
    stated = [("at the certification", certificate["environment"])]
    stated += [(f"of the run with seed {run['seed']}", run["environment"]) for run in certificate["runs"]]
    yield _compared("code", stated, here, _code)
    yield _compared("packages", stated, here, _packages)
    machine = certificate["environment"]["machine"]
    if machine is None or here["machine"] is None or not rounds_alike(machine, here["machine"]):
        reason = "another machine, or another number of threads: translations and losses are compared within bounds"
        yield Check("machine", NOT_CHECKED, reason)
    else:
        yield Check("machine", OK, machine["processor"])


def _compared(
    name: str,
    stated: Sequence[tuple[str, Environment]],
    here: Environment,
    difference: Callable[[Environment, Environment], str],
) -> Check:
    for of, each in stated:
        if reason := difference(each, here):
            return Check(name, DIFFERENT, f"{of}: {reason}")
    unknown = [of for of, each in stated if each["sources"] is None]
    if name == "code" and unknown:
        return Check(name, NOT_CHECKED, f"{unknown[0]}: not recorded")
    return Check(name, OK)


def _code(stated: Environment, here: Environment) -> str:
    if stated["sources"] in (None, here["sources"]):
        return ""
    return f"diglot {stated['diglot']}, commit {stated['commit']}; here {here['diglot']}, commit {here['commit']}"


def _packages(stated: Environment, here: Environment) -> str:
    versions = {**stated["packages"], "python": stated["python"]}
    others = {**here["packages"], "python": here["python"]}
    found = [
        f"{name} {versions[name]}, here {others.get(name)}" for name in versions if versions[name] != others.get(name)
    ]
    return "; ".join(found[:3])


def check_summary(certificate: Certificate) -> Iterator[Check]:
    """Compute the means and standard deviations from the scores of the runs again."""
    runs = certificate["runs"]
    of_tests = [run["test"]["scores"] for run in runs if run["test"] is not None]
    expected = means([run["dev"] for run in runs]), means(of_tests) if len(of_tests) == len(runs) else []
    is_equal = (certificate["dev"], certificate["test"]) == expected and certificate["note"] == note(len(runs))
    yield Check("means and standard deviations", OK if is_equal else DIFFERENT)


def rounds_as_certified(certificate: Certificate) -> bool:
    """Return whether this process rounds as the one that made the certificate: same code, packages and machine."""
    stated, here = certificate["environment"], environment_of(environment([], {}))
    return (
        stated["machine"] is not None
        and here["machine"] is not None
        and rounds_alike(stated["machine"], here["machine"])
        and not _code(stated, here)
        and not _packages(stated, here)
    )


def find_folders(file: Path, runs: Sequence[Run]) -> list[Path | None]:
    """Return the folders of the runs of a certificate: its own folder, one in it, or one beside it.

    Args:
        file: the certificate.
        runs: the runs. Only the names of their folders are used.
    """
    own = file.resolve().parent
    found: list[Path | None] = []
    for run in runs:
        candidates = [own / run["name"], own.parent / run["name"]]
        if (own / CONFIG).is_file() and len(runs) == 1:
            candidates = [own]
        found.append(next((folder for folder in candidates if (folder / CONFIG).is_file()), None))
    return found
