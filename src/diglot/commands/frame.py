"""The frame of every command: compose and check the config, run the command, and report a mistake in one line."""

import difflib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from hydra.utils import get_object
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from diglot.choices import CONF, groups
from diglot.config import hydra_seams
from diglot.config.check import check, keys_of, parameters_of, settle_must_fit
from diglot.config.keys import known_keys, plain_config, unknown_choice, unknown_key
from diglot.config.meaning import meaning_of
from diglot.config.targets import refuse_foreign_hydra
from diglot.errors import READER_GONE, UserError
from diglot.huggingface import hub_models
from diglot.system import interruption
from diglot.system.masking import mask_record, masked
from diglot.system.quoting import command_line, override, printable


def command(config_name: str, keys: type | None = None) -> Callable[[Callable[..., Any]], Callable[[], None]]:
    """Make a function a command.

    Hydra composes the config from conf/<config_name>.yaml and the command line. Then the config is checked. Each user
    mistake is reported as one line on stderr, with exit status 2. The function's return value is for Hydra's sweepers.

    Args:
        config_name: the name of the config and of the command.
        keys: the schema of the config, if the function takes the whole config; None: the function's parameters are the
            keys.
    """

    def decorate(function: Callable[..., Any]) -> Callable[[], None]:
        @wraps(function)
        def main() -> None:
            _Call(config_name, function, keys).run()

        return main

    return decorate


class _Call:
    """One call of a command.

    Args:
        name: the name of the command and its config.
        function: the function that does its work.
        keys: see `command`.
    """

    def __init__(self, name: str, function: Callable[..., Any], keys: type | None) -> None:
        self.name, self.function, self.keys = name, function, keys
        self.has_failed = self.has_begun = False
        # `run` sets HYDRA_FULL_ERROR=1 so that Hydra raises errors instead of printing them. A user who sets it wants
        # the traceback. (A process with LOCAL_RANK may have inherited the value that its parent set.)
        self.wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1" and "LOCAL_RANK" not in os.environ

    def run(self) -> None:
        """Compose the config and run the command."""
        try:
            os.environ["HYDRA_FULL_ERROR"] = "1"
            refuse_other_encodings(sys.argv[1:])
            refuse_args_without_key(sys.argv[1:], self.name)
            prefer_our_files()
            if any(re.match("--experimental-r", arg) for arg in sys.argv[1:]):
                raise UserError("--experimental-rerun: not supported; resume a run with resume=FOLDER")
            with hydra_seams.config_loader(CheckedLoader):
                hydra.main(version_base="1.3", config_path=str(CONF), config_name=self.name)(self._checked)()
        except KeyboardInterrupt:
            interruption.leave(self.name)
        except BrokenPipeError:
            sys.exit(READER_GONE)
        except Exception as error:
            if interruption.received:  # a library has turned the signal into this error
                interruption.leave(self.name)
            if self.has_begun and not isinstance(error, UserError):  # a bug in diglot
                raise
            self._fail(error)
        finally:
            if not self.wants_traceback:
                os.environ.pop("HYDRA_FULL_ERROR", None)
        if self.has_failed:
            sys.exit(2)

    def _checked(self, config: DictConfig) -> Any:
        self.has_begun = True
        logging.getLogger("diglot").addFilter(mask_record)
        try:
            check(config, self.keys or self.function)
            settle_must_fit(config)
            fetch_models(config)
            return self.function(config) if self.keys else self.function(**arguments(config, self.function))
        except UserError as error:  # not raised through Hydra, which would print lines of its own
            if HydraConfig.get().mode == RunMode.MULTIRUN:  # but Hydra's launcher needs the error
                raise
            self._fail(error)
        except BrokenPipeError:  # not raised through Hydra either
            sys.exit(READER_GONE)
        except OmegaConfBaseException as error:  # after the check, a bug in diglot
            raise RuntimeError(f"a bug in diglot: {error}") from error

    def _fail(self, error: BaseException) -> None:
        if self.wants_traceback:
            raise error
        self.has_failed = True
        is_sweep = self.name == "train" and {"--multirun", "-m"} & set(sys.argv[1:])
        command = "sweep" if is_sweep else self.name
        print(masked(f"diglot-{command}: {printable(explain(error, self.name))}"), file=sys.stderr)


def fetch_models(config: DictConfig) -> None:
    """Fetch the models of the Hugging Face Hub whose names were typed as checkpoints, and pin their commits.

    Raises:
        UserError: a model cannot be fetched.
    """
    for key in ("checkpoint", "baseline"):
        value = config.get(key)
        if isinstance(value, str) and hub_models.is_name(value):
            config[key] = hub_models.fetch(value, key)
        elif isinstance(value, ListConfig):
            config[key] = [hub_models.fetch(name, key) if hub_models.is_name(str(name)) else name for name in value]


def arguments(config: DictConfig, function: Callable[..., Any]) -> dict[str, Any]:
    """Return a command function's arguments from its config.

    Nodes stay nodes, lists become plain data, and a group without a choice becomes None.
    """
    values = {name: config.get(name) for name in keys_of(function)}
    return {
        name: OmegaConf.to_container(value, resolve=True) if isinstance(value, ListConfig) else value
        for name, value in values.items()
    }


def refuse_other_encodings(args: Sequence[str]) -> None:
    """Check that all arguments are valid text, since configs and results are written with them.

    Raises:
        UserError: an argument is not. The message names it.
    """
    for arg in args:
        try:
            arg.encode()
        except UnicodeEncodeError:
            encoding = sys.getfilesystemencoding()
            advice = "rename the file or folder" if encoding == "utf-8" else "type PYTHONUTF8=1 before the command"
            raise UserError(f"{arg}: is not valid {encoding}, the encoding of this locale; {advice}") from None


HYDRA_OPTIONS = {
    *("--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m"),
    *("--shell-completion", "-sc", "--experimental-rerun", "--info", "-i", "--cfg", "-c", "--package", "-p"),
    *("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"),
}
_BEFORE_A_VALUE = re.compile(
    "--(cfg|info|package|config-path|config-name|config-dir|experimental-rerun)|-(c|i|p|cp|cn|cd)"
)


def refuse_args_without_key(args: Sequence[str], name: str) -> None:
    """Check that each argument is an override or an option of Hydra's.

    Args:
        args: the command line's arguments.
        name: the name of the command.

    Raises:
        UserError: an argument is something else. The message names it, and the override that was probably meant.
    """
    for i, (previous, arg) in enumerate(pairwise(["", *args])):
        following = args[i + 1] if i + 1 < len(args) and not re.match("[-~]|.*=", args[i + 1], re.DOTALL) else "VALUE"
        if arg.startswith("-") and arg != "--":
            option, is_given, value = arg.partition("=")
            if not any(valid.startswith(option) for valid in HYDRA_OPTIONS):
                key, value = option.lstrip("-").replace("-", "_"), value if is_given else following
                if key in known_keys(name):
                    raise UserError(f"{option}: a key is typed without dashes: type {override(key, value)}")
                reason = unknown_key(key, known_keys(name), name, value)
                raise UserError(f"{option}: a key is typed without dashes, and {reason}")
        elif not re.match("~|.*=|--$", arg, re.DOTALL) and not _BEFORE_A_VALUE.fullmatch(previous):
            raise UserError(
                f"{arg or repr(arg)}: is not of the form KEY=VALUE; type {_with_key(arg, following, args, name)}"
            )


def _with_key(arg: str, following: str, args: Sequence[str], name: str) -> str:
    """Return the override that was probably meant by an argument without an equals sign, and the one after it."""
    if arg in known_keys(name):
        return override(arg, following)
    if "checkpoint" in plain_config(name) and not any(arg.startswith("checkpoint=") for arg in args):
        return override("checkpoint", arg)
    if name == "train" and arg and Path(arg).is_dir():
        return f"{override('resume', arg)} to resume the run in that folder"
    if "data" in plain_config(name) and Path(arg).is_file():
        return "data=files data.train.src=FILE data.train.tgt=FILE to read text of your own"
    return "'KEY=\"a value with blanks\"', or --help to list the keys"


class CheckedLoader(hydra_seams.ConfigLoader):
    """Hydra's config loader, with a check of the hydra node before Hydra acts on it.

    Hydra acts on that node before it calls any function of diglot's. Hydra also composes a command's config twice, the
    first time only to find out whether it is a sweep. The second time, this loader returns the first result again.
    """

    _first: tuple[Any, DictConfig] | None = None  # the words of the first composition, and its result

    def load_configuration(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode, *arguments: Any, **options: Any
    ) -> DictConfig:
        refuse_lists(overrides)
        if config_name is None:  # --hydra-help reads none of diglot's files, and Hydra's defaults write a log
            overrides = [*overrides, "hydra/job_logging=none", "hydra/hydra_logging=none"]
        (composed_of, config), self._first = self._first or ((), None), None
        mode = f"hydra.mode={run_mode.name}"  # Hydra adds this override the second time
        # Only in a sweep may a key have several values. Otherwise Hydra composes again and reports the mistake.
        is_legal = run_mode == RunMode.MULTIRUN or not varies(overrides)
        if config is not None and [config_name, *overrides] == [*composed_of, mode] and is_legal:
            config.hydra.mode = run_mode
            config.hydra.overrides.hydra.append(mode)
            return config
        is_for_mode = not options.get("validate_sweep_overrides", True)
        try:
            config = super().load_configuration(config_name, overrides, run_mode, *arguments, **options)
        except Exception as error:
            if signum := interruption.received:
                # Hydra has turned the exception of the signal into this one, which it ignores the first time.
                raise interruption.Interrupted(signal.Signals(signum).name) from error
            raise
        refuse_foreign_hydra(config.hydra)
        if is_for_mode:
            self._first = (config_name, *overrides), config
        return config


def varies(overrides: list[str]) -> bool:
    """Return whether one of the overrides gives its key several values."""
    return any(override.is_sweep_override() for override in OverridesParser.create().parse_overrides(overrides))


# Groups that accept several choices, each in a node of its own name. In any other group Hydra would merge two choices
# into one node, a mixture of both.
SEVERAL = ("callbacks", "logger", "metric")


def refuse_lists(overrides: Sequence[str]) -> None:
    """Check that a group that holds one thing is given only one choice.

    Raises:
        UserError: an override gives it a list. The message names the first such override.
    """
    of_one = {*groups()} - {*SEVERAL}
    for arg in overrides:
        match = re.fullmatch(r"\+{0,2}([\w/]+)(?:@[\w.:]+)?=\s*\[(.*)\]\s*", arg, re.DOTALL)
        if match and match[1] in of_one and ("," in match[2] or not match[2].strip()):
            first_choice = match[2].partition(",")[0].strip()
            example = f", like {arg.partition('=')[0]}={first_choice}" if first_choice else ""
            raise UserError(f"{arg}: takes one choice{example}")


def prefer_our_files() -> None:
    """Let diglot's config files replace those of the same name from Hydra's plugins.

    Hydra would merge the two and warn about it. It would also reject a plugin's config that has a defaults list.
    """
    Plugins.instance()  # loads the plugins, which register their configs
    for file in (CONF / "hydra").rglob("*.yaml"):
        hydra_seams.forget_stored(file.relative_to(CONF))


def explain(error: BaseException, config_name: str, args: Sequence[str] | None = None) -> str:
    """Return what is wrong with a config, in one line with the key and the nearest valid one.

    Args:
        error: the exception.
        config_name: the name of the command.
        args: the overrides; None: those of the command line.
    """
    args = sys.argv[1:] if args is None else args
    cause = error.__cause__ or error
    if isinstance(cause, UserError):
        return printable(" ".join(str(cause).split()))
    text = str(error)
    key = getattr(cause, "full_key", None) or ""
    if match := re.search(r"Could not (?:override|append to config|delete from config)[^']*'([^']*)'", text):
        return _cannot_override(match.group(1), text, cause, config_name, args)
    if match := re.search(r"Key '([^']*)' is not in struct\s+full_key: (\S+)", text):
        key = match.group(2)
        reason = wrong_choice(key, config_name, args) or missing_plus(key, args)
        reason = reason or missing_logger_name(key, args)
        return reason or _unknown_key(key, config_name, args)
    if match := re.search(r"(?:Could not find|Could not load) '([^']*)'", text):
        group, _, choice = match.group(1).rpartition("/")
        return unknown_choice(group, choice, options(group, args), config_name)
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.*)'(?:\n| requires)", text):
        return _several_values(match.group(1), config_name)
    if "Config group override must be" in text and (reason := _invalid_choice(args)):
        return reason
    if re.search(r"Unknown plugin class : '\S*submitit", text):
        advice = "pip install 'diglot[slurm]', or in a checkout .venv/bin/pip install -e '.[slurm]'"
        return f"submitit is not installed: {advice}"
    if reason := _other_structure(text, cause, config_name, args):
        return reason
    if re.search("(?:mismatched|extraneous) input|token recognition|no viable alternative|LexerNoViableAlt", text):
        source = str(getattr(error, "override", None) or text.splitlines()[0])
        example = '["value"]' if "=[" in source else '"value"'
        return f"cannot read the override {source}: put a value with special characters in quotes, 'key={example}'"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable((f"{key}: " if key and key not in text else "") + "; ".join(lines[:3]))


def _other_structure(text: str, cause: BaseException, config_name: str, args: Sequence[str]) -> str | None:
    """Return a message that an override takes a list for a mapping or the reverse, or None if none does."""
    if match := re.search(r"Error merging override (.*)", text):
        kind = "list" if "object_type=list" in str(cause) else "mapping"
        return f"{match.group(1)}: must be a {kind}"
    if "invalid literal for int()" in text:  # of the name below a list
        for arg in args:
            parent = arg.partition("=")[0].rpartition(".")[0]
            if isinstance(_default(parent, config_name), list):
                return f"{arg}: {parent} is a list; type {parent}=[...]"
    return None


def _default(key: str, config_name: str) -> Any:
    """Return the value that a key of a command's config has by default; None if there is no such key."""
    default: Any = plain_config(config_name)
    for name in key.lstrip("+").split("."):
        default = default.get(name) if isinstance(default, dict) else None
    return default


def _cannot_override(key: str, text: str, cause: BaseException, config_name: str, args: Sequence[str]) -> str:
    """Return the reason why Hydra cannot override a key."""
    if reason := wrong_choice(key, config_name, args):
        return reason
    if reason := missing_plus(key, args) or missing_logger_name(key, args):
        return reason
    if f"~{key}" in args and (key in known_keys(config_name) or key.startswith("model.decoder_")):
        return f"{key} is null already: there is nothing to remove"
    detail = str(cause).splitlines()[0]
    if typed := [arg for arg in args if arg.startswith(f"+{key}=")]:
        return f"{key} exists already: type {printable(typed[0][1:])}, without the +"
    if "not in struct" in str(cause) or "No match" in text or "does not exist" in text or "not in" in detail:
        return _unknown_key(key, config_name, args)
    return f"{key}: {detail}"


def _unknown_key(key: str, config_name: str, args: Sequence[str]) -> str:
    """Return a message that a typed key does not exist in a command's config."""
    values = {arg.lstrip("+").partition("=")[0]: arg.partition("=")[2] for arg in args if "=" in arg}
    return unknown_key(key, known_keys(config_name), config_name, values.get(key.lstrip("+")))


def options(group: str, args: Sequence[str]) -> list[str]:
    """Return the names of a group's choices, including those in folders that the arguments add with --config-dir."""
    folders = [CONF]
    for previous, arg in pairwise(["", *args]):
        if match := re.fullmatch("(?:--config-dir|-cd)=(.*)", arg):
            folders.append(Path(match[1]))
        elif previous in ("--config-dir", "-cd"):
            folders.append(Path(arg))
    return sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})


def _invalid_choice(args: Sequence[str]) -> str | None:
    """Return a message that a group is set to something other than one of its choices, or None otherwise."""
    for group, _, choice in (arg.lstrip("+").partition("=") for arg in args):
        if "@" in group and choice == "null":
            return f"{group}={choice} is not a choice: leave it out to give the decoder the same as the encoder"
        if group in groups() and choice not in options(group, args):
            return f"{group}={choice} is not a choice; there are {', '.join(options(group, args))}"
    return None


# Keys that accept a list, although they have no default that shows it.
_LISTS = {("average", "checkpoint"), ("translate", "checkpoint")}


def _several_values(arg: str, config_name: str) -> str:
    """Return a message that an override gives a key several values outside of a sweep."""
    key, _, value = arg.partition("=")
    takes_list = isinstance(_default(key, config_name), list) or (config_name, key) in _LISTS
    if takes_list or meaning_of(key.lstrip("+")).content is not None:
        return f"{arg}: for a list, type '{key}=[{value}]'"
    if config_name == "train":
        return f"{arg}: for several values: {command_line('sweep', [arg])}"
    return f"{arg}: the key takes one value"


def missing_plus(key: str, args: Sequence[str]) -> str | None:
    """Return a message that a new entry, such as a callback, needs a plus sign, or None if this is not the problem."""
    if re.match(r"(lora|learning_rates)\.", key):  # nodes that are null by default
        entry = next((arg for arg in args if arg.startswith(f"{key}=")), None)
        return f"there is no key {key}: a new entry begins with a plus sign, +{entry}" if entry else None
    named = re.match(r"((callbacks|watch|logger|data\.corpora|data\.further_dev)\.[A-Za-z]\w*)(\.|$)", key)
    pattern = named and re.compile(rf"{re.escape(named[1])}(\._target_=|=\{{|\.(src|tgt|tsv|csv|jsonl|file)=)")
    entry = next((arg for arg in args if pattern and pattern.match(arg)), None)
    return f"there is no key {key}: a new entry begins with a plus sign, +{entry}" if entry else None


def missing_logger_name(key: str, args: Sequence[str]) -> str | None:
    """Return a message that a logger's key lacks the logger's name, or None if this is not the problem."""
    top, _, subkey = key.lstrip("+~").partition(".")
    loggers = next((arg.partition("=")[2] for arg in reversed(args) if arg.startswith("logger=")), "tensorboard")
    names = re.findall(r"\w+", loggers)
    if top != "logger" or not subkey or subkey.partition(".")[0] in names:
        return None
    if subkey.startswith("_"):
        return f"there is no key {key}: a logger of your own needs a name, +logger.mine.{subkey}=..."
    nearest = " or ".join(f"logger.{name}.{subkey}" for name in names if name != "none")
    return f"there is no key {key}: the name of the logger is missing" + (
        f"; did you mean {nearest}?" if nearest else ""
    )


def wrong_choice(key: str, config_name: str, args: Sequence[str]) -> str | None:
    """Return a message that an existing key or group does not fit the other arguments, or None if it fits."""
    key = key.lstrip("+~")
    group, _, package = key.partition("@")
    if package:
        node = package.rpartition(".")[0]
        target = plain_config(config_name).get(node, {}).get("_target_")
        packages = [f"{node}.{name}" for name in parameters_of(get_object(target))] if target else []
        if package not in packages:
            nearest = difflib.get_close_matches(package, packages, 1)
            return f"there is no {package}" + (f"; did you mean {group}@{nearest[0]}?" if nearest else "")
        part = f"{node}/{package.rpartition('.')[2].removeprefix('decoder_')}"
        if part != group and (CONF / part).is_dir():
            candidate = part if part.replace("/", ".") == package else f"{part}@{package}"
            return (
                f"{group} does not fit {package}; did you mean {candidate}=... "
                f"(one of {', '.join(options(part, args))})?"
            )
    elif key not in known_keys(config_name):
        return None
    for arg in args:
        selected, _, choice = arg.partition("=")
        if choice in options(selected, args) and re.match(f"{re.escape(selected)}[./]", key):
            return f"{arg} has no {key}"
    return None
