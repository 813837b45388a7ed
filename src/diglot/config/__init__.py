"""The composition root: reads a command's config, checks it before anything is built, and builds objects from it.

keys: which keys there are. meaning: what each key means beside the value that it gives. check: what is wrong with a
config. build: from config to objects. differences: in what two configs differ. secrets: what comes from the
environment. carried: what a process is given that another one starts. storable: what a checkpoint may hold. The frame
of every command, which turns each mistake of the user's into one line, is diglot.commands.frame.
"""

from diglot.choices import CONF
from diglot.config.build import (
    build,
    build_corpus,
    build_data,
    check_tying,
    choose_precision,
    config_hash,
    plain_path,
    resolved,
    trial_build,
    without_folders,
)
from diglot.config.carried import carrying, read_carried, write_carried
from diglot.config.check import check, keys_of, mistakes
from diglot.config.differences import (
    FROM_ENVIRONMENT,
    Change,
    as_yaml,
    changes,
    different_values,
    read_config,
    refuse_other_run,
)
from diglot.config.keys import known_keys
from diglot.config.meaning import MEANINGS, meaning_of
from diglot.config.secrets import AsWritten, note_secrets, partly_resolved, without_secrets
from diglot.config.storable import check_language, check_parts, check_search, check_tokenizer, check_trust, trusted

__all__ = [
    "CONF",
    "FROM_ENVIRONMENT",
    "MEANINGS",
    "AsWritten",
    "Change",
    "as_yaml",
    "build",
    "build_corpus",
    "build_data",
    "carrying",
    "changes",
    "check",
    "check_language",
    "check_parts",
    "check_search",
    "check_tokenizer",
    "check_trust",
    "check_tying",
    "choose_precision",
    "config_hash",
    "different_values",
    "keys_of",
    "known_keys",
    "meaning_of",
    "mistakes",
    "note_secrets",
    "partly_resolved",
    "plain_path",
    "read_carried",
    "read_config",
    "refuse_other_run",
    "resolved",
    "trial_build",
    "trusted",
    "without_folders",
    "without_secrets",
    "write_carried",
]
