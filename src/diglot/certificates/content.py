"""The content of a certificate, and reading one. A certificate is untrusted: its shape is checked, and nothing else."""

import json
import math
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from diglot.config import check_language
from diglot.data.text import refuse_address
from diglot.errors import UserError
from diglot.system.machine import Machine
from diglot.system.masking import shortened
from diglot.system.quoting import printable

FORMAT: Literal[1] = 1
CERTIFICATE, PAGE = "certificate.json", "certificate.html"
MAX_BYTES = 5_000_000
MAX_ITEMS = 10_000  # of a list or a mapping
MAX_TEXT = 10_000  # characters of a text

# The second argument is a regular expression.
Hash = Annotated[str, "[0-9a-f]{64}"]
FileName = Annotated[str, r"[^/\\\x00-\x1f\x7f]{1,255}"]
RelativePath = Annotated[str, r"[^/\\\x00-\x1f\x7f]{1,255}(/[^/\\\x00-\x1f\x7f]{1,255}){0,3}"]


class Environment(TypedDict):
    """Code, packages and machine.

    Attributes:
        diglot: version of diglot.
        commit: commit of the checkout, with a + if files had been changed; None outside of a checkout.
        sources: hash of the source files of the package; None: a run of an earlier version did not record it.
        python: version of Python.
        packages: versions of packages, by name.
        machine: the machine; None: a run of an earlier version did not record it.
    """

    diglot: str
    commit: str | None
    sources: Hash | None
    python: str
    packages: dict[str, str]
    machine: Machine | None


class Score(TypedDict):
    """Value of a metric, with sacreBLEU's signature or a similar one."""

    name: str
    value: float
    signature: str


class Test(TypedDict):
    """Scores of the kept test outputs, and how often the test text was opened, by command."""

    scores: list[Score]
    openings: dict[str, int]


class Validation(TypedDict):
    """Loss of the dev text after an update."""

    update: int
    loss: float


class FirstUpdates(TypedDict):
    """Training losses of the first updates, computed again from scratch by the certification.

    Attributes:
        device: cpu or cuda.
        threads: number of threads of an operation on the CPU.
        precision: Lightning's name of the precision.
        losses: one per update; empty if they could not be computed.
        missing: why there are no losses; None if there are some.
    """

    device: Literal["cpu", "cuda"]
    threads: int
    precision: str
    losses: list[float]
    missing: str | None


class Adapters(TypedDict):
    """Options of low-rank adapters; see `diglot.model.lora.Lora`."""

    rank: int
    alpha: float
    dropout: float
    on: list[str]
    train: list[str]


class Training(TypedDict):
    """The weights that a run has trained, and where it started.

    Attributes:
        trained_parameters: number of weights that were trained, those of adapters included.
        freeze: parts whose weights were not trained.
        learning_rates: factors of the learning rate by part.
        lora: options of the adapters; None: there were none.
        init_from: hash of the checkpoint that the run started from; None: it started from random weights, or the hash
            was not recorded.
    """

    trained_parameters: int
    freeze: list[str]
    learning_rates: dict[str, float]
    lora: Adapters | None
    init_from: Hash | None


class Run(TypedDict):
    """One run.

    Attributes:
        name: name of its folder.
        seed: its seed.
        command: the command that trained it, to be typed again.
        languages: codes of source and target language.
        parameters: number of parameters.
        training: what was trained; missing: an earlier version has made the certificate.
        updates: number of updates.
        best_update: number of updates of the best checkpoint.
        environment: code, packages and machine at the start of its training.
        text: hash of the text of each split, as diglot reads it.
        files: hash of each file of the folder that the certificate covers, by its path in the folder.
        validations: dev losses.
        dev: scores of the kept dev outputs.
        test: scores of the kept test outputs; None if there are none.
        first_updates: losses of its first updates.
    """

    name: FileName
    seed: int
    command: str
    languages: list[str]
    parameters: int
    training: NotRequired[Training]
    updates: int
    best_update: int
    environment: Environment
    text: dict[str, Hash]
    files: dict[RelativePath, Hash]
    validations: list[Validation]
    dev: list[Score]
    test: Test | None
    first_updates: FirstUpdates


class Mean(TypedDict):
    """Mean of a metric over the runs, with the standard deviation; the deviation of one run is None."""

    name: str
    mean: float
    deviation: float | None


class Certificate(TypedDict):
    """The content of certificate.json.

    Attributes:
        diglot_certificate: number of the format.
        note: remark about the number of seeds; None: there are enough.
        environment: code, packages and machine of the certification, with which `first_updates` was computed.
        runs: the runs, which differ by their seeds alone.
        dev: means of the dev scores.
        test: means of the test scores; empty unless all runs have test outputs.
    """

    diglot_certificate: Literal[1]
    note: str | None
    environment: Environment
    runs: list[Run]
    dev: list[Mean]
    test: list[Mean]


def read_certificate(path: str | Path, key: str = "certificate") -> Certificate:
    """Read a certificate.

    Args:
        path: the file, or the folder that holds it.
        key: the config key of the path, for messages.

    Raises:
        UserError: there is none, or it is malformed. The message names the part.
    """
    refuse_address(key, path)
    file = Path(path).expanduser()
    file = file / CERTIFICATE if file.is_dir() else file
    if not file.is_file():  # reading a pipe would block
        raise UserError(f"{key}={path}: no such file; make certify checkpoint=FOLDER writes one")
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        certificate = json.loads(content, object_pairs_hook=_without_repetition, parse_constant=_refuse_constant)
        if reason := mistake(certificate, Certificate) or _contradiction(certificate):
            raise ValueError(reason)
    except OSError as error:
        raise UserError(f"{key}={path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else printable(shortened(error, 200))
        raise UserError(f"{key}={path}: not a certificate of this version of diglot: {reason}") from None
    return certificate  # type: ignore[no-any-return]


def as_bytes(certificate: Mapping[str, Any]) -> bytes:
    """Return the content of a certificate's file."""
    return (json.dumps(certificate, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def mistake(value: Any, annotation: Any, path: str = "the certificate") -> str | None:
    """Return what is wrong with a value of parsed JSON, with its path; None if it matches an annotation.

    Args:
        value: the value.
        annotation: a TypedDict, list[...], dict[..., ...], Annotated[str, PATTERN], Literal[...], a plain type, or a
            union of one of these with None.
        path: names the value in the message.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is NotRequired:
        return mistake(value, arguments[0], path)
    if origin is Annotated or annotation is str:
        return _wrong_text(value, arguments[1] if arguments else None, path)
    if typing.is_typeddict(annotation):
        return _wrong_keys(value, annotation, path)
    if origin is list:
        return _wrong_items(value, list, None, arguments[0], path)
    if origin is dict:
        return _wrong_items(value, dict, arguments[0], arguments[1], path)
    if origin is Literal:
        is_one = type(value) is type(arguments[0]) and value in arguments
        return None if is_one else f"{path} must be {' or '.join(map(str, arguments))}"
    if type(None) in arguments:
        return None if value is None else mistake(value, arguments[0], path)
    return _wrong_number(value, annotation, path)


def _wrong_text(value: Any, pattern: str | None, path: str) -> str | None:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        return f"{path} must be a text of at most {MAX_TEXT:,} characters"
    if pattern is not None and (
        not re.fullmatch(pattern, value) or ".." in value.split("/") or "." in value.split("/")
    ):
        return f"{path} is {shortened(value, 50)!r}, which it must not be"
    return None


def _wrong_keys(value: Any, annotation: Any, path: str) -> str | None:
    fields = typing.get_type_hints(annotation, include_extras=True)
    if not isinstance(value, dict):
        return f"{path} must be a mapping"
    if missing := [key for key in fields if key in annotation.__required_keys__ and key not in value]:
        return f"{path} has no {missing[0]}"
    if unknown := [key for key in value if key not in fields]:
        return f"{path} has an unknown key {shortened(unknown[0], 50)!r}"
    prefix = "" if path == "the certificate" else f"{path}."
    reasons = (mistake(value[key], fields[key], f"{prefix}{key}") for key in fields if key in value)
    return next((reason for reason in reasons if reason), None)


def _wrong_items(value: Any, kind: type[Any], of_keys: Any, of_items: Any, path: str) -> str | None:
    if not isinstance(value, kind) or len(value) > MAX_ITEMS:
        return f"{path} must be a {kind.__name__} of at most {MAX_ITEMS:,} items"
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        reason = mistake(key, of_keys, f"a key of {path}") if of_keys is not None else None
        if reason := reason or mistake(item, of_items, f"{path}[{shortened(key, 50)}]"):
            return reason
    return None


def _wrong_number(value: Any, annotation: Any, path: str) -> str | None:
    if annotation is int:
        return None if type(value) is int and 0 <= value < 2**53 else f"{path} must be a count"
    is_number = type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
    return None if is_number else f"{path} must be a number"


def _contradiction(certificate: Certificate) -> str | None:
    """Return what is wrong with the parts of a certificate together."""
    runs = certificate["runs"]
    if not runs:
        return "it has no runs"
    for run in runs:
        if len(run["languages"]) != 2:
            return "runs[0].languages must be two codes"
        for name, code in zip(("src_lang", "tgt_lang"), run["languages"], strict=True):
            try:
                check_language(name, code)
            except UserError as error:
                return str(error)
    seeds = [run["seed"] for run in runs]
    return "two runs have the same seed" if len({*seeds}) < len(seeds) else None


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict. Of two values of a key, readers could take either one."""
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("an object has a key twice")
    return dict(pairs)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
