"""Run a tiny round of each benchmark in this process; the figures are not checked."""

import importlib
import io
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hydra import compose

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALL = ["model.d_model=16", "model.d_ff=16", "model.n_encoder_layers=1", "model.n_decoder_layers=1"]
SHORT = ["search=greedy", "search.max_len_a=0", "search.max_len_b=4", "data.eval_tokens_per_batch=60"]
TINY = {
    "checkpoints": ["--models", "tiny", "--rounds=1", "--folder=."],
    "decode": ["--threads=1", "--rounds=1", "--sentences=3"],
    "early_stopping": ["1"],
    "families": ["--families", "marian", "--updates=1"],
    "fine_tuning": ["--model=tiny", "--rounds=1", "--length=5"],
    "first_update": ["200"],
    "gpu": ["--device=cpu", "--tokens=300", "--vocabulary=50", "--seconds=0.01", *SMALL],
    "g2p": [],  # it only says how to call it: otherwise it installs another toolkit
    "huggingface_parity": ["--sentences=2", "--families", "nllb"],
    "loader": ["2000"],
    "preparation": ["200", "1"],
    "roofline": ["--models", "tiny", "--rows=2", "--length=3"],
    "training": ["--threads=1", "--rounds=1", "--length=5"],
    "watching": ["--threads=1", "--rounds=1", "--updates=4", *SMALL, *SHORT],
}
SIZES: dict[str, dict[str, object]] = {
    "checkpoints": {"VOCAB_SIZE": 50},
    "families": {
        "fine_tuned": lambda *_: ({"trained_parameters": 1, "parameters": 2, "best": {"bleu": 3.0}}, 4.0),
        "dev_loss": lambda *_: 5.0,
    },
    "fine_tuning": {"VOCAB_SIZE": 50, "TOKENS": 10},
    "first_update": {"N_WORDS": 50, "SIZE": [*SMALL, "data.vocab_size=300"]},
    "gpu": {"N_PAIRS": 300, "MATRIX": 16, "BACKEND": "eager", "whole_run": lambda folder, words: " ".join(words)},
    "loader": {"SECONDS": 0.05},
    "training": {"VOCAB_SIZE": 50, "TOKENS": 10, "compose": lambda name: compose(name, SMALL)},
    "watching": {"N_VALIDATIONS": 2},
}
SAID = {
    "checkpoints": "tiny   safetensors",
    "decode": "beam 4  diglot, not packed",
    "early_stopping": "| 8.0 | 0.5 | 3 | 6 | 2.0 |",
    "families": "| marian | LoRA | 1 of 2 | 1 | 5.00 | 5.00 | 3.0 | 4 |",
    "fine_tuning": "| LoRA, rank 8, query and value |",
    "first_update": "200 pairs: the whole run in",
    "gpu": "diglot, buckets, compiled",
    "g2p": "python benchmarks/g2p.py MINUTES",
    "huggingface_parity": "| nllb | again | NllbTokenizer |",
    "loader": '"shapes": "buckets"',
    "preparation": "200 pairs, 1 processes",
    "roofline": "target tokens/s at most",
    "training": "target tokens a second",
    "watching": "updates per second by the processor",
}


@pytest.fixture
def benchmark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Return a module of benchmarks/ that is set up for a tiny round."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setitem(sys.modules, request.param, None)  # so that the module is removed at the end
    del sys.modules[request.param]
    module = importlib.import_module(request.param)
    for name, value in SIZES.get(request.param, {}).items():
        monkeypatch.setattr(module, name, value)
    # This setting cannot be undone in a process that runs other tests.
    monkeypatch.setattr(module, "keep_freed_memory", lambda: None, raising=False)
    monkeypatch.setattr(sys, "argv", [f"{request.param}.py", *TINY[request.param]])
    monkeypatch.setattr(subprocess, "run", in_this_process)
    monkeypatch.chdir(tmp_path)
    return module


def in_this_process(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
    """Run the command of a benchmark that starts itself in this process, which avoids another import."""
    _, first, *rest = command
    said = io.StringIO()
    with redirect_stdout(said):
        if first == "-c":
            exec(rest[0], {})
        else:
            before, sys.argv = sys.argv, [first, *rest]
            sys.modules[Path(first).stem].main()
            sys.argv = before
    print(said.getvalue())
    return subprocess.CompletedProcess(command, 0, said.getvalue(), "")


def test_every_benchmark_is_tried_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(TINY)


DEAR = {"training", "watching"}  # they train


@pytest.mark.reliability
@pytest.mark.parametrize(
    "benchmark",
    [pytest.param(name, marks=pytest.mark.reliability) if name in DEAR else name for name in sorted(TINY)],
    indirect=True,
)
def test_a_tiny_round_of_a_benchmark_goes_through(benchmark: ModuleType, capsys: pytest.CaptureFixture) -> None:
    threads = torch.get_num_threads()
    try:
        benchmark.main()
    finally:
        torch.set_num_threads(threads)
    assert SAID[benchmark.__name__] in capsys.readouterr().out
