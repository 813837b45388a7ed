"""A run's folder, locked by this process, and the point where the run resumes."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from diglot.checkpoint import file as checkpoints
from diglot.config import as_yaml, trusted, without_secrets
from diglot.errors import UserError
from diglot.evaluation.scorer import Scorer
from diglot.runs.contents import Contents, contents, contents_now
from diglot.runs.folder import (
    LOG,
    environment,
    folder_lock,
    restore_folder,
    resumable_folder,
    run_folder,
    write_description,
)
from diglot.runs.naming import typed_name
from diglot.runs.plan import Plan
from diglot.runs.resume import (
    AUTO,
    ResumePoint,
    finished_line,
    load_resume_point,
    named_folder,
    newest_unfinished,
    outcome,
    refuse_other_job,
)
from diglot.runs.scoring import build_scorer
from diglot.system import interruption
from diglot.system.console import log_to, say
from diglot.system.quoting import masked_arguments, printable


def finished_folder(config: DictConfig) -> Path | None:
    """Return the folder of the run to resume if that run is finished, and report it; otherwise return None.

    Raises:
        UserError: there is no such run, or it would resume as a different one.
    """
    if (named := named_folder(config)) is not None:
        interruption.set_outcome(partial(outcome, named))
    if config.resume in (None, AUTO):
        return None
    folder = resumable_folder(config.resume)
    if config.run.folder is not None and Path(config.run.folder).expanduser().absolute() != folder.absolute():
        raise UserError(
            f"resume={config.resume} and run.folder={config.run.folder} are two different folders: give one"
        )
    refuse_other_job(folder, config)
    line = finished_line(folder, without_secrets(config), lambda: contents_now(config))
    if line is None:
        return None
    say(line)
    return folder


@dataclass
class OpenRun:
    """A run's folder, which no other process writes to while this one lives.

    Attributes:
        folder: path of the folder.
        config_yaml: the config that is stored in the folder.
        environment: what the run's results may depend on besides its config.
        contents: the contents that the run reads.
        record: the data that every checkpoint holds.
        scorer: scorer of dev translations.
        resume_point: the point where the run resumes.
        is_resumed: whether the run had been started before.
        finished_line: message if nothing is left to do; otherwise None.
        files: contents of the files in the folder that describe the run.
    """

    folder: Path
    config_yaml: str
    environment: dict[str, Any]
    contents: Contents
    record: dict[str, Any]
    scorer: Scorer
    is_resumed: bool
    resume_point: ResumePoint = field(default_factory=ResumePoint)
    finished_line: str | None = None
    files: dict[Path, bytes] = field(default_factory=dict)

    @classmethod
    def begin(cls, plan: Plan) -> "OpenRun":
        """Find or create the run's folder, and load the run's state. The first process decides for all.

        Raises:
            UserError: the folder cannot be used, or the run would resume as a different one.
        """
        config, data, processes, corpus = plan.config, plan.data, plan.processes, plan.corpus
        scorer = build_scorer(config, corpus.tgt_lang, data.held_out["dev"].reference_lines)
        values = without_secrets(config)
        record = checkpoints.record(config, data.tokenizer, corpus.name, corpus.src_lang, corpus.tgt_lang)
        record["data"], record["bleu_tokenizer"] = data.shards.key, scorer.tokenizer
        checkpoints.check_readable(record, trusted(config))
        input_contents = contents(config, corpus, data.digests)
        config_yaml = as_yaml(values)
        environment_record = environment(masked_arguments(sys.argv[1:]), input_contents) if processes.is_first else {}
        resume = config.resume
        with folder_lock(plan.budget, processes):
            if resume == AUTO:
                resume = newest_unfinished(config.run.folder, values, input_contents) if processes.is_first else None
                if processes.is_first:
                    decision = (
                        f"resuming {printable(resume)}/"
                        if resume
                        else "no unfinished run with this config; starting a new one"
                    )
                    say(f"resume=auto: {decision}")
            typed = typed_name(HydraConfig.get().overrides.task if HydraConfig.initialized() else ())
            name = "_".join(filter(None, [f"{corpus.name}-{corpus.src_lang}-{corpus.tgt_lang}", typed]))
            folder = run_folder(plan.budget, name, resume, processes)
            interruption.set_outcome(partial(outcome, folder))
            if processes.is_first and resume is None:
                write_description(folder, config_yaml, data.tokenizer, environment_record)
        is_resumed = processes.shared(resume is not None)  # the first process decides
        run = cls(folder, config_yaml, environment_record, input_contents, record, scorer, is_resumed)
        if is_resumed:
            run._find_resume_point(plan, values)
        if processes.is_first and run.finished_line is None:
            log_to(folder / LOG)
        return run

    def _find_resume_point(self, plan: Plan, values: dict[str, Any]) -> None:
        """Find the point where the run resumes, unless it is finished."""
        data = plan.data
        self.finished_line = finished_line(self.folder, values, lambda: self.contents)
        if self.finished_line is not None:
            return
        self.resume_point = load_resume_point(self.folder, values, data.tokenizer, data.shards, self.contents)
        if self.resume_point.bleu_tokenizer not in (None, self.scorer.tokenizer):  # chosen by an earlier version
            dev = data.held_out["dev"].reference_lines
            self.scorer = build_scorer(plan.config, plan.corpus.tgt_lang, dev, self.resume_point.bleu_tokenizer)
            self.record["bleu_tokenizer"] = self.scorer.tokenizer
        data.start_from(self.resume_point.state.update, self.resume_point.state.position)

    def keep(self, files: Iterable[Path]) -> None:
        """Remember the contents of files in the run's folder, so that they can be rewritten."""
        self.files |= {file: file.read_bytes() for file in files}

    def restore_files(self) -> list[str]:
        """Rewrite the remembered files that were removed, and return their names.

        Raises:
            UserError: they cannot be written, or another process is training in the folder.
        """
        return restore_folder(self.folder, self.files)
