"""A model in the format of Hugging Face's library transformers: a folder with config.json, weights and a tokenizer.

Nothing in the folder is run, and nothing is fetched because the folder says so (`auto_map` and `trust_remote_code` are
ignored). Its files may come from a stranger. Therefore sizes are checked before memory is allocated for them, and only
files directly in the folder are read.
"""

import hashlib
import json
import math
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diglot.checkpoint import container, format1
from diglot.config import build, check_language, check_tokenizer
from diglot.config.storable import LENGTHS, MAX_LIVE_HYPOTHESES, MAX_TENSORS
from diglot.data.pieces import tag
from diglot.data.text import file_hash
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError
from diglot.huggingface.families import model_node, read_weights
from diglot.huggingface.tokenizer_settings import is_integer
from diglot.huggingface.tokenizers import METADATA, ImportedTokenizer, read_tokenizer
from diglot.model import Transformer
from diglot.model.meta import meta_device
from diglot.system.console import warn
from diglot.system.quoting import printable

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
UNKNOWN_LANGUAGES = ("src", "tgt")  # codes of the languages of a folder that names none
# The files that can hold the weights, in the order of preference. An index names the files of a large model.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
MAX_JSON_BYTES = 4_000_000  # the index of a thousand layers has about 2,000,000
MAX_HEADER_BYTES = 10_000_000  # of a safetensors file; that of a thousand layers has about 3,000,000
MAX_SHARDS = 1_000
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "target_vocab.json", METADATA),
)
# The tokenizer.json of NLLB, with 256,000 pieces, has 33,000,000 bytes and takes about 150,000,000 in memory.
MAX_TOKENIZER_JSON_BYTES, MAX_TOKENIZER_MEMORY = 64_000_000, 400_000_000
MAX_VOCABULARY = 2_000_000
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

# Options of `generate` that change outputs and that the search here lacks, with the values that have no effect.
_NOT_FOLLOWED: dict[str, tuple[Any, ...]] = {
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "num_beam_groups": (1,),
    "do_sample": (False,),
}


class Imported(NamedTuple):
    """Content of a folder, in the form of a checkpoint's record and state.

    Attributes:
        model: config of the model.
        search: config of the search that generation_config.json describes.
        tokenizer: tokenizer of both sides.
        src_lang: code of the source language, or src.
        tgt_lang: code of the target language, or tgt.
        model_type: name of the format's kind of model, such as marian.
        state: weights by name, as a run's checkpoint has them; empty if they were not read.
    """

    model: dict[str, Any]
    search: dict[str, Any]
    tokenizer: Tokenizer
    src_lang: str
    tgt_lang: str
    model_type: str
    state: OrderedDict[str, Tensor]


def is_huggingface(path: Path) -> bool:
    """Return whether a path is a folder with a model in this format."""
    return path.is_dir() and (path / CONFIG).is_file()


def read(folder: Path, with_weights: bool = True) -> Imported:
    """Return the content of a folder.

    Args:
        folder: the folder.
        with_weights: whether to read the weights.

    Raises:
        UserError: a file is missing, damaged or hostile, or diglot cannot represent the model. The message names the
            file, and the key if there is one.
    """
    with _named(CONFIG):
        config = read_json(folder / CONFIG)
        if not isinstance(config.get("model_type"), str):
            raise UserError("it has no model_type, so this is not a model for transformers")
        node = model_node(config)
    generation = {key: config[key] for key in _SEARCH_KEYS if key in config}  # where older models have these options
    if (folder / GENERATION).is_file():
        with _named(GENERATION):
            generation |= read_json(folder / GENERATION)
    with _named(GENERATION):
        search = search_node(generation)
    with _named("tokenizer"):
        tokenizer = _read_tokenizer(folder, config)
    src_lang, tgt_lang = languages(folder)
    if tgt_lang == UNKNOWN_LANGUAGES[1]:
        tgt_lang = forced_language(config | generation, tokenizer) or tgt_lang
    state = _read_state(folder, config, node, tokenizer) if with_weights else OrderedDict[str, Tensor]()
    if with_weights:
        _warn_of_search(folder, tuple(sorted(_not_followed(generation))))
    return Imported(node, search, tokenizer.tokenizer, src_lang, tgt_lang, config["model_type"], state)


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Let the errors of a block name a file of the folder."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(file) else f"{file}: {error}") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from None
    except MemoryError:
        raise UserError(f"{file}: there is not enough memory to read it") from None
    except Exception as error:  # a damaged file can make a reader fail in any way
        raise UserError(f"{file}: damaged, or of another form ({type(error).__name__}: {error})") from None


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES, max_memory: int = container.MAX_MEMORY) -> dict[str, Any]:
    """Return the object in a JSON file.

    Args:
        path: the file.
        max_bytes: maximum size of the file.
        max_memory: maximum memory of its content, in bytes.

    Raises:
        UserError: the file is missing, too long, or does not hold an object.
        OSError: it cannot be read.
    """
    if not path.is_file():
        raise UserError("missing")
    if path.stat().st_size > max_bytes:
        raise UserError(f"refused, it has more than {max_bytes:,} bytes")
    try:
        content = container.parse_json(path.read_bytes().decode(), max_memory)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"not JSON ({error})") from None
    if not isinstance(content, dict):
        raise UserError("not a JSON object")
    return content


def forced_language(generation: Mapping[str, Any], imported: ImportedTokenizer) -> str | None:
    """Return the language whose tag begins each translation, such as that of a many-to-one mBART-50; None: no tag does.

    Args:
        generation: options of `generate`. Older models have forced_bos_token_id in config.json.
        imported: the tokenizer of the folder.
    """
    forced = generation.get("forced_bos_token_id")
    if not is_integer(forced) or forced not in imported.tgt_rows or not imported.tokenizer.prefixes.tgt:
        return None
    (piece,) = imported.tokenizer.pieces([imported.tgt_rows.index(forced)], "tgt")
    return next((code for code in imported.tokenizer.languages if tag(code) == piece), None)


def languages(folder: Path) -> tuple[str, str]:
    """Return the codes of the source and target language in tokenizer_config.json; src and tgt if it has none.

    Raises:
        UserError: a code cannot be used.
    """
    content: dict[str, Any] = {}
    if (folder / TOKENIZER).is_file():
        with _named(TOKENIZER):
            content = read_json(folder / TOKENIZER)
    found = []
    for names, unknown in (
        (("source_lang", "src_lang"), UNKNOWN_LANGUAGES[0]),
        (("target_lang", "tgt_lang"), UNKNOWN_LANGUAGES[1]),
    ):
        code = next((content[name] for name in names if content.get(name)), unknown)
        check_language(f"{TOKENIZER}: {names[0]}", code)
        found.append(code)
    return found[0], found[1]


def _read_tokenizer(folder: Path, config: dict[str, Any]) -> ImportedTokenizer:
    """Return the tokenizer of a folder, after a check that its files take a bounded amount of memory."""
    for key in ("vocab_size", "decoder_vocab_size"):
        if key in config and config[key] is not None:
            _number(config, key, 0, 1, MAX_VOCABULARY, int)
    for path in sorted(folder.iterdir()):
        if path.suffix in (".model", ".spm") and path.is_file():
            check_tokenizer(path.name, path.stat().st_size)
        elif path.name in TOKENIZER_FILES and path.is_file():
            with _named(path.name):
                read_json(path, MAX_TOKENIZER_JSON_BYTES, MAX_TOKENIZER_MEMORY)
    try:
        return read_tokenizer(folder, config)
    except UserError as error:
        raise UserError(str(error).removeprefix(f"{folder}: ")) from None


# ------------------------------------------------------------------------------------------------------------- search

_SEARCH_KEYS = ("num_beams", "length_penalty", "max_length", "min_length", *_NOT_FOLLOWED)


def search_node(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the beam search that the options of `generate` describe.

    `generate` divides a hypothesis's log-probability by length^length_penalty. For the default, 1.0, this is
    `length_penalty: mean`. For any other value, the search here divides by ((5 + length) / 6)^length_penalty.

    Raises:
        UserError: an option has no usable value. The message names it.
    """
    beams = _number(generation, "num_beams", 1, 1, MAX_LIVE_HYPOTHESES, int)
    penalty = _number(generation, "length_penalty", 1.0, -100, 100, float)
    node: dict[str, Any] = {"_target_": "diglot.decoding.BeamSearch", "beam_size": beams}
    node["length_penalty"] = 0.0 if beams == 1 else "mean" if penalty == 1 else penalty
    # The lengths of `generate` count the start token, and the greatest one also counts </s>.
    if generation.get("max_length") is not None:
        longest = _number(generation, "max_length", 0, 1, math.inf, int) - 2
        node |= {"max_len_a": 0.0, "max_len_b": min(max(longest, 1), LENGTHS["max_len_b"])}
    shortest = _number(generation, "min_length", 0, 0, LENGTHS["min_len_b"], int) - 1
    return node | ({"min_len_b": shortest} if shortest > 0 else {})


def _number(options: Mapping[str, Any], key: str, default: Any, low: float, high: float, kind: type) -> Any:
    value = options.get(key)
    value = default if value is None else value
    kinds = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        limits = f"from {low:,}" + (f" to {high:,}" if math.isfinite(high) else "")
        raise UserError(f"{key} is {value!r}, and must be a number {limits}")
    return kind(value)


def _not_followed(generation: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}={generation[key]}"
        for key, neutral in _NOT_FOLLOWED.items()
        if generation.get(key) is not None and generation[key] not in neutral
    ]


@cache
def _warn_of_search(folder: Path, options: tuple[str, ...]) -> None:
    if options:
        shown = ", ".join(options)
        warn(f"checkpoint {printable(folder)}: the search does not follow {shown} in {GENERATION}")


# ------------------------------------------------------------------------------------------------------------ weights


def _read_state(
    folder: Path, config: dict[str, Any], node: dict[str, Any], imported: ImportedTokenizer
) -> OrderedDict[str, Tensor]:
    """Return the weights of a folder as the state of the model that a node describes."""
    sizes = imported.tokenizer.vocab_sizes
    weights = Weights(folder)
    with _named(weights.name):
        _check_size(node, sizes, weights)
        model: Transformer = build(node, "model", **sizes)
        read_weights(model, config, weights, imported.src_rows, imported.tgt_rows)
    return OrderedDict((f"model.{name}", weight) for name, weight in model.state_dict().items())


def _check_size(node: Mapping[str, Any], sizes: Mapping[str, int], weights: "Weights") -> None:
    """Check that a model has no more weights than the files, before it is built."""
    n_layers = sum(int(node[key]) for key in ("n_encoder_layers", "n_decoder_layers"))
    if n_layers > len(weights):
        raise UserError(f"{CONFIG} says {n_layers:,} layers, but there are only {len(weights):,} weights")
    with meta_device():
        model = build(node, "model", **sizes)
    n_model = sum(parameter.numel() for parameter in model.parameters())
    n_stored = weights.n_numbers
    if n_model > 1.01 * n_stored + 100_000:  # biases that the files may leave out are zero
        raise UserError(f"{CONFIG} says {n_model:,} weights, but there are only {n_stored:,}")


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a folder's weights.

    Raises:
        UserError: there are none, or the index is damaged or names a file outside of the folder.
    """
    name = next((name for name in WEIGHTS if (folder / name).is_file()), None)
    if name is None:
        raise UserError(f"it has no weights ({' or '.join(WEIGHTS[::2])})")
    if not name.endswith(".json"):
        return [folder / name]
    with _named(name):
        shards = read_json(folder / name).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
            raise UserError("it has no weight_map from weights to files")
        names = list(dict.fromkeys(shards.values()))
        if len(names) > MAX_SHARDS:
            raise UserError(f"refused, it names {len(names):,} files, more than {MAX_SHARDS:,}")
        kind = name.split(".")[1]
        for shard in names:
            if not re.fullmatch(rf"\w[\w.-]{{0,200}}\.{kind}", shard):
                raise UserError(f"refused, it names the file {shard[:60]!r}, which is no .{kind} file of this folder")
            if not (folder / shard).is_file():
                raise UserError(f"the file {shard} is missing")
    return [folder / shard for shard in names]


class Weights(Mapping[str, Tensor]):
    """The weights in a folder by name, in float32. Each is read when it is looked up, so that memory holds one of them.

    Only pytorch_model.bin, which can be read only as a whole, is kept in memory.

    Args:
        folder: the folder.

    Attributes:
        name: name of the first file, for messages.
        n_numbers: number of numbers in all weights.

    Raises:
        UserError: a file is missing or damaged, or holds something other than weights.
    """

    def __init__(self, folder: Path) -> None:
        files = weight_files(folder)
        self.name, self.n_numbers = files[0].name, 0
        self._readers: dict[str, Any] = {}  # by name of the weight
        for file in files:
            with _named(file.name):
                reader: Any = _Safetensors(file) if file.suffix == ".safetensors" else _pickled(file)
                if twice := next((name for name in reader if name in self._readers), None):
                    raise UserError(f"the weight {twice[:60]!r} is also in another file")
                self._readers |= dict.fromkeys(reader, reader)
                self.n_numbers += sum(reader.sizes.values())
        if len(self) > MAX_TENSORS:
            raise UserError(f"{self.name}: refused, there are more than {MAX_TENSORS:,} weights")

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._readers[name][name]
        if tensor.dtype not in FLOATS:
            raise UserError(f"the weight {name[:60]!r} is {tensor.dtype}: only weights of a floating type can be read")
        return tensor.float()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


class _Safetensors(Mapping[str, Tensor]):
    """The tensors in a safetensors file, each of which is read when it is looked up."""

    def __init__(self, file: Path) -> None:
        with file.open("rb") as start:
            length = int.from_bytes(start.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise UserError(f"damaged, or refused: its header would have {length:,} bytes")
        try:
            self._file: Any = safe_open(file, framework="pt")
        except SafetensorError as error:
            raise UserError(f"damaged ({error})") from None
        self.sizes = {name: math.prod(self._file.get_slice(name).get_shape()) for name in self._file.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


class _Pickled(dict[str, Tensor]):
    """The tensors in a file that torch.save has written."""

    @property
    def sizes(self) -> dict[str, int]:
        return {name: tensor.numel() for name, tensor in self.items()}


def _pickled(file: Path) -> _Pickled:
    with file.open("rb") as opened:
        content = format1.read_any(opened)
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise UserError("it holds something other than weights by name")
    return _Pickled(content)


def digest(folder: Path) -> str:
    """Return a hash of the files of a folder that determine its model and its tokenizer.

    Raises:
        UserError: it has no weights.
    """
    others = [path for path in folder.iterdir() if path.suffix in (".json", ".model", ".spm") and path.is_file()]
    hashes = [f"{path.name} {file_hash(path)}" for path in sorted({*others, *weight_files(folder)})]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()
