"""The composition root: reads a command's config, checks it before anything is built, and builds objects from it."""

import difflib
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from diglot.data.corpus import Corpus
from diglot.data.module import TranslationData
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer
from diglot.errors import UserError

# The checkout's conf/, or, in a wheel, the copy inside the package.
CONF = next(
    p for p in (Path(__file__).parents[2] / "conf", Path(__file__).parent / "conf") if (p / "train.yaml").is_file()
)

# Keys of libraries that would go past ours, and what does it here.
OURS_INSTEAD = {
    "trainer.max_epochs": "run.passes",
    "trainer.min_epochs": "run.passes",
    "trainer.min_steps": "run.updates",
    "trainer.limit_train_batches": "run.updates",
    "trainer.limit_val_batches": "data (dev is always scored whole)",
    "trainer.limit_test_batches": "data (test is always scored whole)",
    "trainer.overfit_batches": "data.train (a small file) and run.updates",
    "trainer.accumulate_grad_batches": "data.batches_per_update",
    "trainer.val_check_interval": "run.validate_every",
    "trainer.check_val_every_n_epoch": "run.validate_every",
    "trainer.logger": "logger",
    "trainer.callbacks": "callbacks",
    "trainer.default_root_dir": "run.folder",
    "trainer.enable_checkpointing": "run.validate_every (a checkpoint follows each validation)",
    "trainer.use_distributed_sampler": "nothing: batches are shared out already",
    "trainer.reload_dataloaders_every_n_epochs": "nothing: a run is one pass of its loader",
    "optimizer.lr": "scheduler.lr",
    "optimizer.params": "nothing: all weights are trained",
    "model.src_vocab_size": "tokenizer.vocab_size",
    "model.tgt_vocab_size": "tokenizer.vocab_size",
    "model.vocab_size": "tokenizer.vocab_size",
    "hydra.run.dir": "run.folder",
}

# Types of the keys that no constructor takes, or that mean more here than to the library.
OUR_TYPES: dict[str, Any] = {
    "seed": int,
    "label_smoothing": float,
    "init_from": str | None,
    "checkpoint": str,
    "split": Literal["dev", "test", "train"],
    "tgt_lang": str | None,
    "device": str | None,
    "input": str | None,
    "output": str | None,
    "tokens_per_batch": int,
    "trainer.precision": int | str,
    "trainer.max_steps": int | None,
}

# Two spellings of one thing.
EITHER_OR = [("run.updates", "run.passes"), ("run.updates", "trainer.max_steps"), ("run.passes", "trainer.max_steps")]

# What the code that builds a node adds to it.
GIVEN_BY_CODE = {
    "model": {"src_vocab_size", "tgt_vocab_size"},
    "trainer": {"callbacks", "logger", "plugins", "accumulate_grad_batches", "val_check_interval", "max_epochs"},
}


# ---------------------------------------------------------------------------------------------------------- commands


def command(config_name: str) -> Callable[[Callable[[DictConfig], None]], Callable[[], None]]:
    """Make a function of a config a command: its config is composed by Hydra from conf/<config_name>.yaml and the
    command line, checked, and every mistake of the user's is one line on stderr and exit status 2."""

    def decorate(function: Callable[[DictConfig], None]) -> Callable[[], None]:
        def main() -> None:
            failed = False
            # Hydra passes errors on instead of printing them; a user who asks for that wants the traceback.
            wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"

            def fail(error: BaseException) -> None:
                nonlocal failed
                if wants_traceback:
                    raise error
                failed = True
                print(f"diglot-{config_name}: {_one_line(error, config_name)}", file=sys.stderr)

            def checked(config: DictConfig) -> None:
                try:
                    check(config, config_name)
                    function(config)
                except UserError as error:  # not passed through Hydra, which would add lines of its own
                    fail(error)
                except OmegaConfBaseException as error:  # past the check it is no mistake of the user's
                    raise RuntimeError(f"a fault of diglot's: {error}") from error

            try:
                os.environ["HYDRA_FULL_ERROR"] = "1"
                hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(checked)()
            except (HydraException, OmegaConfBaseException) as error:
                fail(error)
            except KeyboardInterrupt:
                print(f"diglot-{config_name}: interrupted", file=sys.stderr)
                sys.exit(130)
            except BrokenPipeError:  # whoever read our output has gone
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                sys.exit(141)
            finally:
                if not wants_traceback:
                    os.environ.pop("HYDRA_FULL_ERROR", None)
            if failed:
                sys.exit(2)

        return main

    return decorate


def _one_line(error: BaseException, config_name: str) -> str:
    """What is wrong with a config, in one line that names the key and the nearest valid one."""
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    text = str(error)
    cause = error.__cause__ or error
    key = getattr(cause, "full_key", None) or ""
    if match := re.search(r"Could not (?:override|append to config|delete from config)[^']*'([^']*)'", text):
        key = match.group(1)
        detail = str(cause).splitlines()[0]
        if "not in struct" in str(cause) or "No match" in text or "does not exist" in text or "not in" in detail:
            return unknown_key(key, known_keys(config_name))
        return f"{key}: {detail}"
    if match := re.search(r"Key '([^']*)' is not in struct\s+full_key: (\S+)", text):
        return unknown_key(match.group(2), known_keys(config_name))
    if match := re.search(r"(?:Could not find|Could not load) '([^']*)'", text):
        group, _, choice = match.group(1).rpartition("/")
        options = sorted(p.stem for p in (CONF / group).glob("*.yaml"))
        nearest = difflib.get_close_matches(choice, options, 1)
        hint = f"; did you mean {group}={nearest[0]}?" if nearest else ""
        return f"{group}={choice}: there is no such choice; there are {', '.join(options)}{hint}"
    if match := re.search(r"Could not override '([^']*)'\.?\s*\n?No match in the defaults list", text):
        return unknown_key(match.group(1), known_keys(config_name))
    if "mismatched input" in text or "token recognition" in text or "no viable alternative" in text:
        what = str(getattr(error, "override", None) or text.splitlines()[0])
        return f"cannot read the override {what}: put a value with special characters in quotes, 'key=\"value\"'"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (f"{key}: " if key and key not in text else "") + "; ".join(lines[:3])


def known_keys(config_name: str) -> list[str]:
    """All keys of a command's config as it stands in conf/."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(config_name)
    groups = [str(p.relative_to(CONF)) for p in CONF.rglob("*") if p.is_dir()]
    return sorted({*flat_keys(OmegaConf.to_container(config)), *groups})


def flat_keys(node: Any, path: str = "") -> Iterator[str]:
    """The dotted path of every node of a config."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            here = f"{path}.{key}" if path else str(key)
            yield here
            yield from flat_keys(value, here)


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Say that there is no such key, and which one was meant."""
    key = key.lstrip("+~").split("@")[0]
    if key in OURS_INSTEAD:
        return f"{key} is not used here; what does it is {OURS_INSTEAD[key]}"
    nearest = difflib.get_close_matches(key, known, 1, cutoff=0.6)
    if not nearest:  # the right name in another place, like n_heads for model.n_heads
        leaf = key.rpartition(".")[2]
        nearest = [k for k in known if k.rpartition(".")[2] == leaf]
        leaves = {k.rpartition(".")[2]: k for k in known}
        nearest = nearest or [leaves[n] for n in difflib.get_close_matches(leaf, leaves, 1, cutoff=0.75)]
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"there is no key {key}{hint}"


# ------------------------------------------------------------------------------------------------------------- check


def check(config: DictConfig, config_name: str) -> None:
    """Refuse what the objects named in a config would not take: unknown names, wrong types, missing values.

    Raises:
        UserError: naming each key, what is wrong with it, and the nearest valid one.
    """
    if HydraConfig.initialized():
        for override in HydraConfig.get().overrides.hydra:
            if re.match(r"\+*hydra\.(run|sweep)\.(dir|subdir)=", override) and not re.search(r"=\.$", override):
                raise UserError(unknown_key("hydra.run.dir", []))
        for one, other in EITHER_OR:
            if {one, other} <= typed_overrides():
                raise UserError(f"{one} and {other} both say how long the run is: give one of them")
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"{missing[0]} must be given: {missing[0]}=VALUE")
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{getattr(error, 'full_key', '')}: {str(error).splitlines()[0]}") from None
    assert isinstance(plain, dict)
    allowed = {key.split(".")[0] for key in known_keys(config_name)}
    found = [unknown_key(str(key), sorted(allowed)) for key in plain if key not in allowed]
    for key, value in plain.items():
        wanted = OUR_TYPES.get(str(key))
        if wanted is not None and not fits(value, wanted):
            found.append(f"{key!s}={value!r}: must be {describe(wanted)}")
        found += mistakes(value, str(key))
    if found:
        raise UserError("; ".join(found))


def typed_overrides() -> set[str]:
    """The keys that the command line says something of."""
    words = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    return {word.lstrip("+~").partition("=")[0] for word in words}


def mistakes(node: Any, path: str) -> Iterator[str]:
    """What the targets named in a node would refuse."""
    if isinstance(node, list):
        for i, item in enumerate(node):
            yield from mistakes(item, f"{path}[{i}]")
    if not isinstance(node, dict):
        return
    target = node.get("_target_")
    parameters: dict[str, Any] = {}
    if target is not None:
        try:
            parameters = parameters_of(get_object(target))
        except Exception:
            yield f"{path}._target_: there is no {target}"
            return
        if path == "data":
            parameters = {**parameters_of(TranslationData), "vocab_size": int} | parameters
            for name in ("corpus", "tokenizer", "seed"):
                parameters.pop(name)
    for key, value in node.items():
        here = f"{path}.{key}"
        if isinstance(key, str) and key.startswith("_") and key.endswith("_"):
            continue
        if here in OURS_INSTEAD:
            if value is not None:
                yield unknown_key(here, [])
            continue
        if target is not None and key not in parameters:
            if "**" not in parameters:
                known = [f"{path}.{name}" for name in parameters if name not in GIVEN_BY_CODE.get(path, ())]
                yield unknown_key(here, known)
            continue
        wanted = OUR_TYPES.get(here, parameters.get(key, Any))
        if target is not None and not fits(value, wanted):
            yield f"{here}={value!r}: must be {describe(wanted)}"
            continue
        yield from mistakes(value, here)


def parameters_of(target: Any) -> dict[str, Any]:
    """Names and annotations of what a class or function takes; "**" stands for any other name."""
    try:
        signature = inspect.signature(target)
    except ValueError:
        return {"**": Any}
    kinds = inspect.Parameter
    found: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is kinds.VAR_KEYWORD:
            found["**"] = Any
        elif parameter.kind is not kinds.VAR_POSITIONAL:
            found[name] = Any if parameter.annotation is kinds.empty else parameter.annotation
    return found


def fits(value: Any, annotation: Any) -> bool:
    """Whether a config value is of an annotated type. What a config cannot hold is not judged."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, a) for a in arguments)
    if origin is typing.Literal:
        return value in arguments
    if annotation is bool:
        return isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is str:
        return isinstance(value, str)
    if annotation is Path:
        return isinstance(value, str)
    kind = origin or annotation
    if inspect.isclass(kind) and kind is not object:
        if issubclass(kind, Mapping):
            return isinstance(value, dict)
        if kind is Callable or kind.__name__ == "Callable":
            return isinstance(value, dict) and "_target_" in value
        if issubclass(kind, (list, tuple, set)) or kind in (Sequence, typing.Iterable):
            return isinstance(value, list) and all(fits(v, arguments[0]) for v in value if arguments)
        return isinstance(value, dict) and "_target_" in value
    return True


def describe(annotation: Any) -> str:
    """An annotated type in the words of a config."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(a) for a in arguments)
    if origin is typing.Literal:
        return " or ".join(str(a) for a in arguments)
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    if annotation in names:
        return names[annotation]
    if inspect.isclass(origin or annotation) and issubclass(origin or annotation, (list, tuple)):
        return "a list"
    if inspect.isclass(origin or annotation) and issubclass(origin or annotation, Mapping):
        return "a mapping"
    return "something with a _target_"


# ------------------------------------------------------------------------------------------------------------- build


def build(node: Any, path: str, **given: Any) -> Any:
    """Build what a node names; a value it refuses is the user's mistake.

    Raises:
        UserError: naming the node.
    """
    try:
        return instantiate(node, _convert_="all", **given)
    except HydraException as error:
        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, Exception):
            raise UserError(f"{path}: {cause}") from cause
        raise
    except (ValueError, TypeError) as error:  # a factory refused what it was called with
        raise UserError(f"{path}: {error}") from error


def build_corpus(node: DictConfig) -> Corpus:
    """The corpus that a data node names, from the keys that are its own."""
    own = parameters_of(get_object(node._target_))
    return build({k: v for k, v in resolved(node).items() if k in own or k == "_target_"}, "data")


def build_data(node: DictConfig, corpus: Corpus, tokenizer: TokenizerTrainer | Tokenizer, seed: int) -> TranslationData:
    """The data module, from the keys of a data node that are not the corpus's."""
    own = parameters_of(TranslationData)
    options = {k: v for k, v in resolved(node).items() if k in own}
    target = f"{TranslationData.__module__}.{TranslationData.__qualname__}"
    return build({"_target_": target, **options}, "data", corpus=corpus, tokenizer=tokenizer, seed=seed)


def resolved(node: DictConfig) -> dict[str, Any]:
    """A node as plain data with its interpolations filled in."""
    plain: Any = OmegaConf.to_container(node, resolve=True)
    return plain


def without_secrets(config: DictConfig) -> dict[str, Any]:
    """A whole config as plain data, resolved but for what reads the environment, which stays as it was written."""
    filled: Any = OmegaConf.to_container(config, resolve=True)
    written = OmegaConf.to_container(config, resolve=False)
    reads_environment = re.compile(r"\$\{oc\.env:|\$\{oc\.decode:")

    def merge(a: Any, b: Any) -> Any:  # a: filled in, b: as written
        if isinstance(b, str) and reads_environment.search(b):
            return b
        if isinstance(a, dict) and isinstance(b, dict):
            return {k: merge(a[k], b[k]) for k in a}
        if isinstance(a, list) and isinstance(b, list):
            return [merge(x, y) for x, y in zip(a, b, strict=True)]
        return a

    merged: Any = merge(filled, written)
    assert isinstance(merged, dict)
    return merged


def refuse_foreign_targets(node: Any) -> None:
    """Make sure that a config from a checkpoint names nothing but our own classes and torch's layers.

    Raises:
        UserError: naming the first other target.
    """
    if isinstance(node, list):
        for item in node:
            refuse_foreign_targets(item)
    elif isinstance(node, dict):
        target = node.get("_target_")
        if target is not None and not (isinstance(target, str) and re.match(r"(diglot|torch\.nn)\.[\w.]+$", target)):
            raise UserError(f"the checkpoint names {target!r}, which is neither diglot's nor torch.nn's: not loaded")
        for value in node.values():
            refuse_foreign_targets(value)


def trial_build(config: DictConfig) -> None:
    """Build what needs no data on a device without memory, so that a wrong value shows in a second.

    Raises:
        UserError: naming the node.
    """
    with torch.device("meta"):
        build(config.model, "model", src_vocab_size=300, tgt_vocab_size=300)
    if not 0 <= config.label_smoothing < 1:
        raise UserError(f"label_smoothing={config.label_smoothing}: must be at least 0 and below 1")
    if config.seed < 0:
        raise UserError(f"seed={config.seed}: must not be negative")
    build(config.search, "search")
    optimizer = build(config.optimizer, "optimizer")
    try:
        trial = optimizer([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"optimizer: {error}") from error
    scheduler = build(config.scheduler, "scheduler")
    try:
        scheduler(optimizer=trial, total_updates=1)
    except (ValueError, TypeError) as error:
        raise UserError(f"scheduler: {error}") from error


def choose_precision(wanted: Any, accelerator: str) -> str:
    """The precision to train in: what was asked for, or for `auto` bfloat16 where the device computes it natively.

    Args:
        wanted: a Lightning precision, or auto.
        accelerator: cpu, cuda, ...

    Raises:
        UserError: if the device lacks it.
    """
    if accelerator == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = accelerator == "cpu" and torch.cpu._is_avx512_bf16_supported()
    if wanted == "auto":
        return "bf16-mixed" if has_bf16 else "32-true"
    precision = str(wanted)
    if accelerator == "cpu" and precision in ("16", "16-mixed", "16-true"):
        raise UserError(f"trainer.precision={precision}: a CPU does not compute in float16; take bf16-mixed or 32-true")
    if accelerator == "cuda" and precision.startswith("bf16") and not has_bf16:
        raise UserError(
            f"trainer.precision={precision}: this GPU does not compute in bfloat16; take 16-mixed or 32-true"
        )
    return precision
