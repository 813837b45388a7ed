"""The config of a command: reading it, checking it before anything is built, and building objects from it.

- keys: the keys that exist.
- meaning: the properties of each key besides its value.
- check: the mistakes in a config.
- build: objects from a config.
- differences: the differences between two configs.
- scores: the scores that a run computes.
- secrets: values from the environment.
- targets: the classes that a config may name.
- composed: the config that one process passes to the processes that it starts.
- storable: the limits on the content of a checkpoint.
- fine_tuning: the weights that a run trains.
- exportable: the models that an export format can represent.
- hydra_seams: the private parts of Hydra and OmegaConf that diglot uses.

`diglot.commands.frame` is the frame of every command. It turns each user mistake into one line.
"""

from diglot.choices import CONF
from diglot.config.build import (
    build,
    build_corpus,
    build_data,
    check_tying,
    choose_precision,
    config_hash,
    hash_without_seed,
    plain_path,
    resolved,
    settle_shapes,
    trial_build,
    without_folders,
)
from diglot.config.check import EXTENSION, check, is_composed, keys_of, mistakes, settle_must_fit, typed_nodes
from diglot.config.composed import composed_command, read_composed, write_composed
from diglot.config.differences import (
    FROM_ENVIRONMENT,
    Change,
    as_yaml,
    changes,
    different_values,
    read_config,
    refuse_other_run,
)
from diglot.config.fine_tuning import FineTuning
from diglot.config.keys import known_keys, plain_config
from diglot.config.meaning import MEANINGS, meaning_of
from diglot.config.scores import higher_is_better, monitored, objective
from diglot.config.secrets import UnresolvedText, note_secrets, resolved_except_secrets, without_secrets
from diglot.config.storable import (
    check_language,
    check_parts,
    check_run_config,
    check_search,
    check_tokenizer,
    check_trust,
    is_tokenizer_node,
    trusted,
)

__all__ = [
    "CONF",
    "EXTENSION",
    "FROM_ENVIRONMENT",
    "MEANINGS",
    "Change",
    "FineTuning",
    "UnresolvedText",
    "as_yaml",
    "build",
    "build_corpus",
    "build_data",
    "changes",
    "check",
    "check_language",
    "check_parts",
    "check_run_config",
    "check_search",
    "check_tokenizer",
    "check_trust",
    "check_tying",
    "choose_precision",
    "composed_command",
    "config_hash",
    "different_values",
    "hash_without_seed",
    "higher_is_better",
    "is_composed",
    "is_tokenizer_node",
    "keys_of",
    "known_keys",
    "meaning_of",
    "mistakes",
    "monitored",
    "note_secrets",
    "objective",
    "plain_config",
    "plain_path",
    "read_composed",
    "read_config",
    "refuse_other_run",
    "resolved",
    "resolved_except_secrets",
    "settle_must_fit",
    "settle_shapes",
    "trial_build",
    "trusted",
    "typed_nodes",
    "without_folders",
    "without_secrets",
    "write_composed",
]
