"""Check that each file of the package has a test at the corresponding path, or an entry here that names its test."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "src" / "diglot"
# By file: its test, and, if the test uses no name that the file defines, a word of the test that refers to the file.
ELSEWHERE = {
    "__main__.py": "commands/test_python_m.py",
    "errors.py": "config/test_check.py",
    "checkpoint/atomic_io.py": "training/test_checkpoint_writer.py",
    "checkpoint/averaging.py": "commands/test_average.py",
    "checkpoint/conversion.py": "commands/test_convert.py",
    "commands/evaluate.py": "evaluation/test_evaluate.py",
    "commands/prepare.py": "data/test_bad_input.py: diglot-prepare",
    "commands/replay.py": "runs/test_replay.py",
    "commands/schema.py": "commands/test_frame.py",
    "commands/start.py": "system/test_interruption.py",
    "commands/sweep.py": "sweeps/test_sweep.py",
    "commands/verify.py": "commands/test_certify.py: diglot-verify",
    "commands/train.py": "end_to_end/test_runs.py",
    "commands/translate.py": "inference/test_translator.py",
    "config/composed.py": "sweeps/test_sweep.py",
    "config/differences.py": "runs/test_resume_point.py",
    "config/exportable.py": "export/test_ctranslate2.py",
    "config/keys.py": "config/test_check.py",
    "config/secrets.py": "config/test_check.py",
    "config/stock_class.py": "export/test_huggingface.py: without_stock_class",
    "config/targets.py": "reliability/test_targets.py: _target_",
    "data/alignment.py": "data/test_diagnosis.py",
    "data/batch.py": "data/test_module.py",
    "data/dataset_card.py": "data/test_hub.py: README",
    "data/doctor.py": "data/test_diagnosis.py",
    "data/flat.py": "data/test_module.py",
    "data/mixed.py": "data/test_corpus.py",
    "data/pieces.py": "data/test_forms.py",
    "data/readers/formats.py": "data/readers/test_reading.py: format",
    "data/readers/json_rows.py": "data/readers/test_reading.py: JSON",
    "data/readers/opening.py": "data/readers/test_reading.py: opening",
    "data/readers/parquet.py": "data/readers/test_reading.py: Parquet",
    "data/readers/rows.py": "data/readers/test_reading.py: tabs",
    "data/readers/sides.py": "data/readers/test_reading.py: columns",
    "data/readers/unit_formats.py": "data/readers/test_reading.py: tmx",
    "data/readers/zip_pair.py": "data/readers/test_reading.py: ZIP",
    "data/shards.py": "data/test_module.py",
    "data/slices.py": "data/test_hub.py: slice",
    "data/special_ids.py": "data/test_tokenizer.py: special",
    "data/stream.py": "data/test_module.py: batching",
    "decoding/bayes_risk.py": "decoding/test_samples.py: utility",
    "decoding/beam.py": "decoding/test_search.py",
    "decoding/ensemble.py": "inference/test_translator.py: ensemble",
    "decoding/sampling.py": "decoding/test_samples.py",
    "decoding/score.py": "decoding/test_pair_scores.py",
    "decoding/state.py": "decoding/test_topk.py",
    "evaluation/breakdown.py": "evaluation/test_evaluate.py",
    "evaluation/significance.py": "evaluation/test_evaluate.py",
    "export/folder.py": "commands/test_export.py",
    "export/huggingface_parity.py": "export/test_huggingface.py: same tokens",
    "export/model_card.py": "export/test_huggingface.py: model_card",
    "export/parity.py": "commands/test_export.py",
    "export/transformers_worker.py": "export/test_huggingface.py: same tokens",
    "export/writing.py": "commands/test_export.py",
    "huggingface/fast.py": "huggingface/test_tokenizers.py: tokenizer.json",
    "huggingface/languages.py": "huggingface/test_tokenizers.py: tags",
    "huggingface/tokenizer_settings.py": "huggingface/test_tokenizers.py: must be",
    "huggingface/vocabulary.py": "huggingface/test_tokenizers.py: vocabulary",
    "inference/scoring.py": "commands/test_score.py",
    "model/attention.py": "model/test_equivalence.py",
    "model/dropout.py": "model/test_variants.py",
    "model/encoder_decoder.py": "model/test_attention_weights.py",
    "model/feed_forward.py": "model/test_equivalence.py",
    "model/norm.py": "model/test_variants.py",
    "model/position.py": "model/test_equivalence.py",
    "model/recurrent.py": "model/test_variants.py",
    "model/residual.py": "model/test_equivalence.py",
    "model/transformer.py": "model/test_variants.py",
    "runs/first_updates.py": "commands/test_certify.py: first_updates",
    "runs/contents.py": "runs/test_resume_point.py",
    "runs/open_run.py": "end_to_end/test_runs.py: resume=auto",
    "runs/plan.py": "config/test_check.py",
    "runs/resume.py": "runs/test_resume_point.py",
    "runs/replay_report.py": "runs/test_replay.py: diglot-replay",
    "runs/session.py": "end_to_end/test_runs.py: diglot-train",
    "sweeps/job.py": "sweeps/test_sweep.py",
    "sweeps/search.py": "sweeps/test_optuna_search.py",
    "system/console.py": "runs/test_folder.py",
    "training/dev_scores.py": "training/test_task.py",
    "training/figures.py": "training/test_watch.py",
    "training/heads.py": "training/test_watch.py",
    "training/processes.py": "end_to_end/test_processes.py",
    "training/progress.py": "training/test_pulse_lines.py",
    "training/run.py": "sweeps/test_sweep.py",
    "training/state.py": "training/test_task.py",
}
FILES = sorted(str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if file.name != "__init__.py")


def test_each_file_of_the_package_has_its_test() -> None:
    own = {file for file in FILES if (TESTS / file).with_name(f"test_{Path(file).name}").is_file()}
    assert set(FILES) - own == ELSEWHERE.keys(), "name the test of a new file here, or let it have one of its own"


@pytest.mark.parametrize(("file", "where"), ELSEWHERE.items())
def test_the_test_that_stands_here_is_one_of_it(file: str, where: str) -> None:
    test, _, word = where.partition(": ")
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    named = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    module = Path(file).stem
    words = {*named, f"diglot-{module}", f"diglot.{file.replace('/', '.').removesuffix('.py')}", f"import {module}"}
    words = {word} if word else words
    text = (TESTS / test).read_text(encoding="utf-8")
    assert re.search("|".join(rf"\b{re.escape(word)}\b" for word in words), text), f"{test} names nothing of {file}"
