"""If memory runs out during a run, one line reports the batch and a batch size that would fit."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import refuse

from diglot.data.tokenizer import Tokenizer
from diglot.decoding import BeamSearch
from diglot.errors import UserError, is_out_of_memory
from diglot.inference.translator import Translator
from runs import FAULT, TINY, is_whole, run, same_weights, text, weights

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.promise(
        "If memory runs out, one line gives the shape of the batch and a token budget that fits, and the last "
        "checkpoint stays intact."
    ),
]

MEMORY = "+callbacks.memory._target_=faults.Memory"
RUN = ("run.updates=8", "run.validate_every=3", MEMORY)
ENDED = (
    r"diglot-train: out of memory in a batch \((\d+) x (\d+) source and (\d+) target tokens\) of "
    r"data\.(\w+)=(\d+): data\.\w+=(\d+) would fit"
)


@pytest.mark.end_to_end
def test_in_training(tmp_path: Path) -> None:
    words = (*text(tmp_path), *TINY, *RUN)
    ended = run(tmp_path, *words, code=2, ROWS="1", UPDATE="4")
    (line,) = ended.lines("diglot-train")
    found = re.match(ENDED, line)
    assert found, line
    assert "Traceback" not in ended.said
    rows, src, tgt, key, given, fits = found.groups()
    assert (key, given) == ("tokens_per_batch", "60")
    assert int(rows) > 1
    assert int(fits) == max(int(src), int(tgt))
    assert "in a new run (init_from=run/last.ckpt starts it with these weights)" in line
    assert "resume=run resumes the run. The last checkpoint is run/last.ckpt." in line
    assert is_whole(tmp_path / "run")
    # With more memory, it resumes as if nothing had happened.
    other = tmp_path / "other"
    other.mkdir()
    words = tuple(word for word in words if not word.startswith("run.folder"))
    run(tmp_path, *words, "resume=run", ROWS="1000")
    run(other, *words, "run.folder=run", ROWS="1000")
    assert same_weights(tmp_path / "run", other / "run")


@pytest.mark.end_to_end
def test_in_validation_the_budget_of_dev_batches_is_named_and_the_run_goes_on_with_another(tmp_path: Path) -> None:
    words = (*text(tmp_path), *TINY, *RUN)
    ended = run(tmp_path, *words, "data.eval_tokens_per_batch=300", code=2, ROWS="2", UPDATE="2", WHERE="validation")
    (line,) = ended.lines("diglot-train")
    found = re.match(ENDED, line)
    assert found, line
    _, src, tgt, key, given, fits = found.groups()
    assert (key, given) == ("eval_tokens_per_batch", "300")
    assert 0 < int(fits) <= 2 * max(int(src), int(tgt))
    assert is_whole(tmp_path / "run")
    words = (*(word for word in words if not word.startswith("run.folder")), "resume=run")
    run(tmp_path, *words, f"data.eval_tokens_per_batch={fits}", ROWS="2", UPDATE="2", WHERE="validation")


@pytest.mark.end_to_end
def test_of_the_system_s_memory(tmp_path: Path) -> None:
    """Limit the memory of the resuming process so that its first batch does not fit."""
    words = (*text(tmp_path), *TINY, *RUN, FAULT, "model.d_ff=20000", "trainer.precision=32-true")
    run(tmp_path, *words, code=-9, FAULT="kill:0:4", ROWS="1000")
    words = (*(word for word in words if not word.startswith("run.folder")), "resume=run")
    ended = run(tmp_path, *words, code=2, ROWS="0", UPDATE="3", LIMIT="4")
    (line,) = ended.lines("diglot-train")
    assert "out of memory in a batch (" in line, ended.said
    assert "would fit" in line or "not even one row of it fits" in line
    assert is_whole(tmp_path / "run")
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())


def test_where_a_translation_does_not_fit_it_is_made_in_parts(build_model: Any, tokenizer: Tokenizer) -> None:
    sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
    search = BeamSearch(beam_size=2, length_penalty=0.6, max_len_a=0.0, max_len_b=5)
    translator = Translator(build_model(**sizes), tokenizer, search, {}, None)
    lines = [" ".join("abc"[: 1 + i % 3]) for i in range(11)]
    expected = translator.translate(lines)
    refuse(translator.model, "encode", rows=2)
    assert translator.translate(lines) == expected
    refuse(translator.model, "encode", rows=0)
    with pytest.raises(
        UserError, match=r"line \d+ has \d+ tokens: out of memory; a smaller search.beam_size, search.max"
    ):
        translator.translate(lines)


def test_what_says_that_memory_has_run_out() -> None:
    cpu = (
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"
    )
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        MemoryError(),
        RuntimeError(cpu),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ):
        assert is_out_of_memory(error)
    for other in (RuntimeError("size mismatch"), ValueError("can't allocate memory"), KeyboardInterrupt()):
        assert not is_out_of_memory(other)
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**50)
    assert is_out_of_memory(refused.value)
