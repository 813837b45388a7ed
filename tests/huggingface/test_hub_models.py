"""Models of the Hugging Face Hub, from a server in this process in the Hub's place."""

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import constants

from diglot.errors import UserError
from diglot.huggingface import hub_models

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "marian"}',
    "generation_config.json": b"{}",
    "source.spm": b"source",
    "vocab.json": b"{}",
    "pytorch_model.bin": b"weights",
    "model.safetensors": b"weights",
    "modeling_evil.py": b"raise SystemExit",
    "README.md": b"# A model",
    "onnx/model.onnx": b"other weights",
}


class FakeHub:
    """A server that answers like the Hub, for one public and one gated repository.

    Attributes:
        files: the files of the public repository.
        fetched: the paths that were requested.
    """

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.fetched: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer()

            def do_GET(self) -> None:
                self.answer()

            def answer(self) -> None:
                status, headers, body = hub.answer(self.path.partition("?")[0])
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    hub.fetched.append(self.path.partition("?")[0])
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        api, model = "/api/models/", "owner/model"
        if path in (f"{api}{model}", *(f"{api}{model}/revision/{name}" for name in ("main", "v1", COMMIT))):
            siblings = [{"rfilename": name} for name in self.files]
            content = {"id": model, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
            return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()
        if path == f"{api}{model}/tree/{COMMIT}":
            sizes = {name: len(content) for name, content in self.files.items()}
            tree = [{"type": "file", "path": name, "oid": "0" * 40, "size": size} for name, size in sizes.items()]
            return 200, {"Content-Type": "application/json"}, json.dumps(tree).encode()
        if path.startswith(f"{api}{model}/revision/"):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        if path.startswith(f"{api}owner/gated"):
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        start = f"/{model}/resolve/{COMMIT}/"
        if path.startswith(start) and (name := path.removeprefix(start)) in self.files:
            tag = hashlib.sha256(self.files[name]).hexdigest()
            return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{tag}"'}, self.files[name]
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    server = FakeHub()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.chdir(tmp_path)
    yield server
    server.server.shutdown()
    server.server.server_close()


def test_only_data_and_one_kind_of_weights_are_fetched_and_the_commit_is_pinned(fake_hub):
    assert hub_models.cached("owner/model") is None
    assert hub_models.fetch("owner/model", "init_from") == f"owner/model@{COMMIT}"
    folder = hub_models.cached(f"owner/model@{COMMIT}")
    assert folder is not None
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: FILES[name]
        for name in ("config.json", "generation_config.json", "source.spm", "vocab.json", "model.safetensors")
    }
    assert not any(".py" in path or "onnx" in path or ".bin" in path for path in fake_hub.fetched)
    assert hub_models.is_in_cache(folder)
    assert not hub_models.is_in_cache(Path.cwd())
    fake_hub.fetched.clear()
    assert hub_models.fetch("owner/model@v1", "init_from") == f"owner/model@{COMMIT}"
    assert not any("/resolve/" in path for path in fake_hub.fetched)  # the cache has them


def test_the_cache_suffices_without_a_network(fake_hub, monkeypatch):
    hub_models.fetch("owner/model", "checkpoint")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("owner/model", f"owner/model@{COMMIT}"):
        assert hub_models.fetch(name, "checkpoint") == f"owner/model@{COMMIT}"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("owner/none", "init_from=owner/none: no such file or folder here, and no such model on the Hub"),
        ("owner/model@v9", "init_from=owner/model@v9: the Hub has this model, but not this revision"),
        ("owner/gated", "request access on https://huggingface.co/owner/gated and log in with `hf auth login`"),
    ],
)
def test_what_the_hub_refuses_is_one_line(fake_hub, name, wanted):
    with pytest.raises(UserError) as refused:
        hub_models.fetch(name, "init_from")
    assert wanted in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("missing", ["config.json", "weights"])
def test_a_repository_without_a_model_is_refused(fake_hub, missing):
    for name in (missing,) if missing in FILES else ("pytorch_model.bin", "model.safetensors"):
        del fake_hub.files[name]
    with pytest.raises(UserError, match="has no weights for PyTorch"):
        hub_models.fetch("owner/model", "init_from")


def test_without_a_network_the_line_says_what_to_type(fake_hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError) as refused:
        hub_models.fetch("owner/model@v1", "init_from")
    said = str(refused.value)
    assert "the Hub cannot be reached" in said
    assert "`hf download owner/model --revision v1 --local-dir FOLDER`, then init_from=FOLDER here" in said


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("Helsinki-NLP/opus-mt-de-en", True),
        ("facebook/nllb-200-distilled-600M@main", True),
        ("runs/gone", False),  # runs/ is a folder
        ("model", False),
        ("a/b/c", False),
        ("../b", False),
        ("/a/b", False),
        ("there/here.ckpt", False),
        ("a/b@../c", False),
        ("https://a.b/c", False),
    ],
)
def test_a_path_is_no_name(tmp_path, monkeypatch, text, is_name):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    assert hub_models.is_name(text) == is_name


def test_the_shards_of_an_index_are_fetched():
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    others = ["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json", "tf_model.h5", "x/model.safetensors"]
    files = hub_models.needed(
        ["config.json", "model.safetensors.index.json", "spiece.model", "merges.txt", *shards, *others]
    )
    assert files == ["model.safetensors.index.json", *shards, "config.json", "spiece.model"]
    assert hub_models.needed(["config.json", "tf_model.h5"]) == []
