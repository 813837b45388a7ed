"""Code in files is never run, and no file takes more memory or time than its size justifies."""

import contextlib
import itertools
import json
import os
import pickle
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import (
    TINY,
    Call,
    composed,
    measure,
    payloads,
    run,
    saved,
    with_payload,
    written,
)

from diglot import config as root
from diglot.checkpoint import container
from diglot.checkpoint import file as checkpoint
from diglot.config.differences import read_config
from diglot.data.module import TranslationData
from diglot.data.options import DataOptions
from diglot.data.sampling import Sampling
from diglot.data.tokenizer import TokenizerTrainer
from diglot.errors import UserError
from diglot.sweeps.job import Job
from support.commands import type_command

pytestmark = pytest.mark.reliability

with tempfile.TemporaryDirectory() as _folder:
    NAMES = sorted(payloads(Path("canary"), Path(_folder)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of two updates."""
    return run(tmp_path_factory.mktemp("work") / "run")


@pytest.fixture(scope="module")
def old(trained: Path) -> Path:
    """Return the best checkpoint of that run in the old format, a pickle."""
    return saved(trained.parent / "old.ckpt", content(trained))


@pytest.fixture(autouse=True)
def torch_is_told_to_run_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def refused(call: Callable[[], Any], *wanted: str) -> str:
    """Check that a call is rejected in one line that contains the given words, and return the line."""
    with pytest.raises(UserError) as error:
        call()
    said = str(error.value)
    assert "\n" not in said
    assert all(word in said for word in wanted), said
    return said


def content(trained: Path) -> dict[str, Any]:
    found: dict[str, Any] = container.read(trained / "best.ckpt")
    return found


@pytest.mark.promise("Loading a checkpoint executes no code from it, whatever environment variables are set")
class TestCode:
    def test_every_payload_runs_where_nothing_keeps_it_from_it(self, canary: Path, tmp_path: Path) -> None:
        made = payloads(canary, tmp_path)
        assert len(made) >= 25
        for name, payload in made.items():
            measure(lambda payload=payload: pickle.loads(b"\x80\x02" + payload + b"."))
            assert canary.exists(), name
            canary.unlink()

    @pytest.mark.parametrize("name", NAMES)
    def test_a_payload_is_refused_and_named(self, old: Path, canary: Path, tmp_path: Path, name: str) -> None:
        bad = with_payload(old, tmp_path / "bad.ckpt", payloads(canary, tmp_path)[name])
        refused(lambda: checkpoint.load(bad), "bad.ckpt", "holds more than weights and plain data (")
        assert not canary.exists()

    @pytest.mark.parametrize(
        "place",
        [
            "",
            "state_dict",
            "optimizer_states.0.state",
            "lr_schedulers.0",
            "callbacks",
            "loops",
            "diglot",
            "diglot.config",
        ],
    )
    def test_it_is_refused_wherever_it_stands(self, trained: Path, canary: Path, tmp_path: Path, place: str) -> None:
        found = content(trained)
        node: Any = found
        for step in filter(None, place.split(".")):
            node = node[int(step) if step.isdigit() else step]
        node["more"] = Call(os.system, f"touch {canary}")
        bad = saved(tmp_path / "bad.ckpt", found)
        refused(lambda: checkpoint.read(bad), "bad.ckpt", "posix.system")
        assert not canary.exists()

    def test_it_is_refused_in_other_formats_of_torch(self, trained: Path, canary: Path, tmp_path: Path) -> None:
        call = Call(os.system, f"touch {canary}")
        torch.save({"x": call}, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
        (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(call))
        torch.save({"x": call}, tmp_path / "protocol.ckpt", pickle_protocol=4)
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), str(tmp_path / "script.ckpt"))
        for name in ("old", "plain", "protocol", "script"):
            refused(lambda name=name: checkpoint.load(tmp_path / f"{name}.ckpt"), f"{name}.ckpt")  # type: ignore[misc]
        assert not canary.exists()

    def test_it_is_refused_on_every_way_in(self, trained: Path, canary: Path, tmp_path: Path) -> None:
        bad = tmp_path / "run" / "last.ckpt"
        run_folder = tmp_path / "run"
        run_folder.mkdir()
        cut_short = trained / "config.yaml"
        (run_folder / "config.yaml").write_bytes(cut_short.read_bytes())
        saved(bad, {**content(trained), "more": Call(os.system, f"touch {canary}")})
        cache = f"data.cache_dir='{trained.parent / 'cache'}'"
        refused(lambda: run(tmp_path / "new", cache, f"init_from='{bad}'"), "posix.system")
        refused(lambda: run(run_folder, cache, f"resume='{run_folder}'"), "posix.system")
        refused(lambda: checkpoint.load(run_folder), "posix.system")
        assert not canary.exists()

    @pytest.mark.end_to_end
    def test_the_commands_say_so_in_one_line(self, trained: Path, canary: Path, tmp_path: Path) -> None:
        saved(tmp_path / "bad.ckpt", {**content(trained), "more": Call(os.system, f"touch {canary}")})
        for command in ("diglot-translate", "diglot-evaluate"):
            said = type_command(command, "checkpoint=bad.ckpt", cwd=tmp_path, stdin="a\n", code=2).stderr.decode()
            assert said.count("\n") == 1
            assert "bad.ckpt" in said
            assert "posix.system" in said
        assert not canary.exists()

    def test_pickles_in_a_file_of_today_are_bytes(self, trained: Path, canary: Path, tmp_path: Path) -> None:
        made = payloads(canary, tmp_path)
        tensors = {name: torch.frombuffer(bytearray(payload), dtype=torch.uint8) for name, payload in made.items()}
        found = checkpoint.read(written(tmp_path / "x.ckpt", content(trained) | {"bytes": made, "tensors": tensors}))
        assert found["bytes"] == made
        assert not canary.exists()

    @pytest.mark.parametrize("is_old", [True, False])
    def test_two_archives_in_one_file_are_none(
        self, trained: Path, old: Path, canary: Path, tmp_path: Path, is_old: bool
    ) -> None:
        good = (old if is_old else trained / "best.ckpt").read_bytes()
        evil = saved(tmp_path / "evil.ckpt", {"more": Call(os.system, f"touch {canary}")}).read_bytes()
        for n, both in enumerate((evil + good, good + evil, good[:-22] + evil + good[-22:], good + b"\0" * 30)):
            (tmp_path / f"{n}.ckpt").write_bytes(both)
            refused(lambda n=n: checkpoint.load(tmp_path / f"{n}.ckpt"), f"{n}.ckpt")  # type: ignore[misc]
        assert not canary.exists()


@pytest.mark.promise("A checkpoint is never downloaded, even if its path is a URL")
def test_an_address_is_not_opened(tmp_path: Path) -> None:
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/run"
    try:
        refused(lambda: checkpoint.load(f"{address}/x.ckpt"), f"checkpoint={address}/x.ckpt: this is a URL")
        refused(lambda: run(tmp_path / "a", f"init_from='{address}'"), "this is a URL")
        refused(lambda: run(tmp_path / "a", f"resume='{address}'"), f"resume={address}: this is a URL")
        for other in ("s3://bucket/x.ckpt", "hf://repo/x.ckpt", "file:///x.ckpt"):
            refused(lambda other=other: checkpoint.load(other), "this is a URL")  # type: ignore[misc]
    finally:
        server.shutdown()
    assert not asked


@pytest.mark.promise(
    "The config in a checkpoint can name only parts of models, and cannot read anything from the machine"
)
@pytest.mark.parametrize("save", [saved, written])
@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"_target_": "os.system", "command": "touch CANARY"}, "os.system"),
        ({"_target_": "torch.load", "f": "x", "weights_only": False}, "torch.load"),
        ({"_target_": "torch.nn.Module.load_state_dict"}, "load_state_dict"),
        ({"_target_": "diglot.data.text.write_lines", "path": "CANARY", "lines": ["x"]}, "write_lines"),
        ({"_target_": "torch.nn.LayerNorm", "_args_": [{"_target_": "builtins.open"}]}, "positional"),
        ({"_target_": "torch.nn.LayerNorm", "_partial_": True, "eps": "${oc.env:HOME}"}, "${oc.env:HOME}"),
        ({"_target_": "torch.nn.LayerNorm", "_partial_": True, "eps": "${oc.decode:1}"}, "${oc.decode:1}"),
        ({"_target_": ["os.system"]}, "not loaded"),
    ],
)
def test_a_stored_config_calls_nothing(
    trained: Path, canary: Path, tmp_path: Path, changed: dict, wanted: str, save: Callable[[Path, Any], Path]
) -> None:
    changed = json.loads(json.dumps(changed).replace("CANARY", str(canary)))
    found = content(trained)
    found["diglot"]["model"]["norm"] = changed
    refused(lambda: checkpoint.load(save(tmp_path / "bad.ckpt", found)), "bad.ckpt", wanted)
    found = content(trained)
    found["diglot"]["search"] = changed
    refused(lambda: checkpoint.load(save(tmp_path / "bad.ckpt", found)), "bad.ckpt")
    assert not canary.exists()


@pytest.mark.promise(
    "The config in a checkpoint can name only parts of models, and cannot read anything from the machine"
)
@pytest.mark.parametrize("save", [saved, written])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("src_lang", "../../../x"),
        ("tgt_lang", "/etc/x"),
        ("src_lang", "a\x1b[2J"),
        ("languages", ["de", "../x"]),
        ("prefixes", ["tgt_lang"]),
        ("prefixes", {"src": [], "tgt": [], "more": []}),
        ("prefixes", {"src": [], "tgt": "<s>"}),
        ("prefixes", {"src": [["<s>"]], "tgt": []}),
        ("prefixes", {"src": ["tgt_lang"] * 9, "tgt": []}),
        ("prefixes", {"src": ["<a piece that it lacks>"], "tgt": []}),
        ("prefixes", {"src": [], "tgt": ["</s>"]}),
        ("placeholder", "("),
        ("placeholder", "(" * 5000),
        ("placeholder", 3),
        ("model", None),
        ("search", []),
        ("tokenizer", torch.zeros(3)),
        ("tokenizer", torch.zeros(0, dtype=torch.uint8)),
        ("config", "x"),
        ("format", 3),
    ],
)
def test_what_a_checkpoint_says_of_itself_is_looked_at(
    trained: Path, tmp_path: Path, key: str, value: object, save: Callable[[Path, Any], Path]
) -> None:
    found = content(trained)
    found["diglot"][key] = value
    refused(lambda: checkpoint.load(save(tmp_path / "bad.ckpt", found)), "bad.ckpt")


def in_moments(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    """Return a function that changes the optimizer's state of its first parameter."""
    return lambda found: change(found["optimizer_states"][0]["state"][0])


@pytest.mark.parametrize(
    "change",
    [
        in_moments(lambda state: state.update(exp_avg=torch.zeros(7))),
        in_moments(lambda state: state.update(exp_avg=torch.zeros(10**6, dtype=torch.bool))),
        in_moments(lambda state: state.update(exp_avg="x")),
        in_moments(lambda state: state.update(step="x")),
        in_moments(lambda state: state.pop("exp_avg_sq")),
        lambda found: found.update(optimizer_states=3),
        lambda found: found.update(optimizer_states=[]),
        lambda found: found["optimizer_states"][0].pop("param_groups"),
        lambda found: found.pop("loops"),
        lambda found: found["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"].update(ready="x"),
        lambda found: found.update(global_step="x"),
        lambda found: found["diglot"].update(place=["x"] * 5),
    ],
)
def test_a_state_of_the_training_that_is_none_is_refused_in_one_line(
    trained: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    found = content(trained)
    change(found)
    folder = tmp_path / "run"
    folder.mkdir()
    written(folder / "last.ckpt", found)
    cache = f"data.cache_dir='{trained.parent / 'cache'}'"
    text = (trained / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace(str(trained), str(folder)))
    refused(lambda: run(folder, cache, f"resume='{folder}'", "run.updates=4"), "no run can resume from")


@pytest.mark.promise("Reading another file of a run, a sweep or the cache executes no code from it")
class TestOtherFiles:
    def test_a_config_that_makes_objects_is_damaged(self, canary: Path, tmp_path: Path) -> None:
        file = tmp_path / "config.yaml"
        for text in (
            f"seed: !!python/object/apply:os.system ['touch {canary}']",
            f"seed: !!python/object/new:os.system ['touch {canary}']",
            "a: &a [x, x]\nb: &b [*a, *a]\n",
            "[" * 3000,
            "\0",
        ):
            file.write_text(text)
            refused(lambda: read_config(file), "config.yaml: cannot be read")
        assert not canary.exists()

    def test_a_config_that_refers_to_itself_takes_no_memory(self, tmp_path: Path) -> None:
        names = [f"a{i}" for i in range(12)]
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in itertools.pairwise(names)]
        (tmp_path / "config.yaml").write_text("\n".join(lines))
        found = measure(lambda: read_config(tmp_path / "config.yaml"))
        assert "it contains a YAML alias" in found.said
        assert found.seconds < 1
        assert found.grown < 20e6

    def test_what_a_run_s_config_reads_from_the_environment_stays_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MY_TOKEN", "hunter2")
        (tmp_path / "config.yaml").write_text("seed: ${oc.env:MY_TOKEN}")
        assert read_config(tmp_path / "config.yaml") == {"seed": "${oc.env:MY_TOKEN}"}

    def test_a_cache_that_holds_pickles_is_made_anew_or_damaged(self, canary: Path, tmp_path: Path) -> None:
        evil = pickle.dumps(Call(os.system, f"touch {canary}"))
        cache = tmp_path / "cache"

        def prepare() -> None:
            corpus = root.build_corpus(composed(*TINY).data)
            trainer = TokenizerTrainer(model_type="unigram", vocab_size=330)
            data = TranslationData(
                corpus=corpus,
                tokenizer=trainer,
                sampling=Sampling(),
                seed=1,
                options=DataOptions(tokens_per_batch=300, cache_dir=str(cache)),
            )
            data.prepare_data()
            data.setup()

        prepare()
        files = [file for file in cache.rglob("*") if file.is_file()]
        assert {file.suffix for file in files} >= {".model", ".ids", ".offsets", ".json"}
        for file in files:
            for content in (evil, b"[" * 100_000):
                before = file.read_bytes()
                file.write_bytes(content)
                with contextlib.suppress(UserError):  # otherwise, the file has been recreated
                    prepare()
                file.write_bytes(before)
        assert not canary.exists()

    def test_a_tokenizer_that_is_a_pickle_is_none(self, canary: Path, tmp_path: Path) -> None:
        (tmp_path / "x.model").write_bytes(pickle.dumps(Call(os.system, f"touch {canary}")))
        words = ("tokenizer=files", f"tokenizer.model='{tmp_path / 'x.model'}'")
        small = [word for word in TINY if "vocab_size" not in word]
        from diglot.commands.train import train

        where = (f"run.folder='{tmp_path / 'run'}'", f"data.cache_dir='{tmp_path / 'cache'}'")
        refused(lambda: train(composed(*small, *words, *where)), "x.model", "not a SentencePiece model")
        assert not canary.exists()

    def test_records_of_jobs_and_results_are_plain(self, canary: Path, tmp_path: Path) -> None:
        for content in (pickle.dumps(Call(os.system, f"touch {canary}")), b"[" * 100_000, b"{}", b"3", b"\xff"):
            (tmp_path / "job.json").write_bytes(content)
            refused(lambda: Job.read(tmp_path), "job.json: damaged")
        job = Job(tmp_path, 1, (), (), "x")
        for content in (pickle.dumps(Call(os.system, f"touch {canary}")), b"[" * 100_000, b"[]"):
            (tmp_path / "results.json").write_bytes(content)
            assert job.results == {}
        assert not canary.exists()
