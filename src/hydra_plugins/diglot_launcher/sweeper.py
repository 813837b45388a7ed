"""The sweeper. A sweep's jobs are the product of what the command line varies and of a list of rows."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from diglot.errors import UserError
from hydra_plugins.diglot_launcher.launcher import (
    DiglotLauncher,
    begin,
    choose_folder,
    for_launcher,
    for_others,
    job_config,
    launch,
)


class DiglotSweeper(Sweeper):
    """Sweeper over rows, and over the product of all choices, like Hydra's own sweeper.

    A row is a mapping of overrides, like a line of a table in a paper. Its values may refer to the config that the rest
    of the command line composes, and may calculate with the resolvers at the end of this file.

    Args:
        rows: the mappings.
        params: what varies in addition to the command line, like {model.n_heads: "2,4"}.
        max_batch_size: the maximum number of jobs that a launcher gets at once; None or -1: all.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]] = (),
        params: dict[str, str] | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        self.params, self.max_batch_size = params or {}, max_batch_size

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from diglot.config.hydra_seams import read_once

        read_once(hydra_context.config_loader)
        choose_folder(config)
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[JobReturn]:
        """Run all jobs.

        Raises:
            UserError: nothing varies, or some jobs failed. The others have run, unless sweep.stop_at_first_failure is
                set.
        """
        from diglot.config.hydra_seams import returned_value
        from diglot.sweeps.sweep import Sweep, some_failed

        assert self.config is not None
        assert self.hydra_context is not None
        assert self.launcher is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides(
            [*self.typed_params(), *arguments, *for_launcher(self.launcher, self.config)]
        )
        # Not the rows that __init__ got: their interpolations are already resolved.
        rows = OmegaConf.to_container(self.config.hydra.sweeper, resolve=False).get("rows") or []  # type: ignore[union-attr]
        if not rows and not any(override.is_sweep_override() for override in overrides):
            raise UserError(
                "nothing varies: name a sweep, like sweep=positions, or several values, like model.n_heads=2,4"
            )
        for override in overrides:
            if override.is_sweep_override() and not override.is_discrete_sweep():
                raise UserError(
                    f"{override.input_line} names no choices to try one by one: it is for hydra/sweeper=optuna"
                )
        jobs = [
            job_overrides for combination in product(overrides) for job_overrides in self._with_rows(combination, rows)
        ]

        sweep = Sweep.of(self.config)
        sweep.check_baseline(len(jobs))
        if not isinstance(self.launcher, DiglotLauncher):  # DiglotLauncher does this itself
            configs = [job_config(self.hydra_context, self.config, job) for job in jobs]
            sweep = begin(self.launcher, self.config)
            jobs = for_others(self.launcher, self.config, sweep, jobs, configs)
        results: list[JobReturn] = []
        try:
            size = len(jobs) if self.max_batch_size in (None, -1) else self.max_batch_size
            for start in range(0, len(jobs), size):
                results += launch(self.launcher, self.config, sweep, jobs[start : start + size], start)
            sweep.conclude()
        finally:
            sweep.unlock()
        if errors := [returned_value(result) for result in results if result.status == JobStatus.FAILED]:
            raise some_failed(errors, len(results))
        return results

    def typed_params(self) -> list[str]:
        """Return the overrides of `params`. Choices that read the environment stay expressions."""
        from diglot.config import UnresolvedText, resolved_except_secrets

        assert self.config is not None
        expressions = resolved_except_secrets(self.config.hydra.sweeper.params) or {}
        overrides = {key: f"{key}={value}" for key, value in (self.params or {}).items()}
        for key, value in expressions.items():
            override = f"{key}={value}"
            parsed = OverridesParser.create().parse_overrides([override])[0]
            if isinstance(value, UnresolvedText) and parsed.is_sweep_override():
                overrides[key] = override  # otherwise the variable itself holds the list of choices
        return list(overrides.values())

    def _with_rows(self, combination: list[str], rows: list[Mapping[str, Any]]) -> list[list[str]]:
        """Return a job for each row. A row's overrides come last, so they take precedence."""
        if not rows:
            return [combination]
        assert self.config is not None
        assert self.hydra_context is not None
        config = self.hydra_context.config_loader.load_sweep_config(self.config, combination)
        return [combination + row for row in filled_in(rows, config)]


def product(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the overrides of each job: every combination of the values in the overrides.

    If a key has several overrides, only the last one counts.
    """
    by_key: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        is_sweep = override.is_sweep_override()
        values = override.sweep_string_iterator() if is_sweep else [override.get_value_element_as_str()]
        by_key[key] = [f"{key}={value}" for value in values]
    return [list(combination) for combination in itertools.product(*by_key.values())]


def filled_in(rows: Sequence[Mapping[str, Any]], config: DictConfig) -> list[list[str]]:
    """Return rows as lists of overrides, with their interpolations resolved against a config."""
    from diglot.config import resolved_except_secrets

    filled = []
    for row in rows:
        values = resolved_except_secrets(OmegaConf.create(dict(row), parent=config))
        filled.append([f"{key!s}={as_override(value)}" for key, value in values.items()])
    return filled


def as_override(value: Any) -> str:
    """Return a value in the syntax of an override."""
    from diglot.config import UnresolvedText
    from diglot.system.quoting import quoted

    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{as_override(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(as_override(item) for item in value) + "]"
    if isinstance(value, UnresolvedText):
        is_single = re.fullmatch(r"\$\{[^{}]*\}", value) is not None
        return str(value) if is_single else "'" + value.replace("'", r"\'") + "'"
    if isinstance(value, str):
        return quoted(value)
    return "null" if value is None else str(value).lower()


# Resolvers for the values of rows. Each takes the quantity to scale, and the factor as a fraction: times / by.


def scaled(value: float, times: float, by: float = 1, of: int = 1) -> int:
    """Return the positive multiple of `of` nearest to a scaled value."""
    return max(1, math.floor(value * times / by / of + 0.5)) * of


def of_all(model: DictConfig, key: str) -> Any:
    """Return a number that all attentions of a model share.

    Raises:
        UserError: the model has one number per kind of attention, which cannot be scaled as one.
    """
    value = model[key]
    if isinstance(value, DictConfig):
        raise UserError(f"model.{key}={value}: give one number, which the rows of this sweep scale")
    return value


def scaled_heads(model: DictConfig, times: float, by: float = 1) -> int:
    """Return the number of heads nearest to the scaled number, such that the head width is an even integer."""
    target = of_all(model, "n_heads") * times / by
    divisors = [n for n in range(1, model.d_model + 1) if model.d_model % (2 * n) == 0]
    return min(divisors or [1], key=lambda n: abs(n - target))


def scaled_head(model: DictConfig, times: float, by: float = 1) -> int:
    """Return the even head width nearest to the scaled head width of a model."""
    return scaled(of_all(model, "d_head") or model.d_model / of_all(model, "n_heads"), times, by, of=2)


def scaled_width(model: DictConfig, times: float, by: float = 1) -> int:
    """Return the model width nearest to the scaled width, such that the head width is an even integer."""
    return scaled(model.d_model, times, by, of=2 * of_all(model, "n_heads"))


for _function in (scaled, scaled_heads, scaled_head, scaled_width):
    OmegaConf.register_new_resolver(f"diglot.{_function.__name__}", _function, replace=True)
