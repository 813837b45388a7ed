"""Models of the Hugging Face Hub by name: fetched into the Hub's cache if the user typed the name, and found there."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from diglot.errors import UserError

# The files that hold the weights of a model, in the order of preference, each with its shards if it is an index.
WEIGHTS = {
    "model.safetensors": None,
    "model.safetensors.index.json": r"model-\d+-of-\d+\.safetensors",
    "pytorch_model.bin": None,
    "pytorch_model.bin.index.json": r"pytorch_model-\d+-of-\d+\.bin",
}
_OTHERS = re.compile(
    r"(config|generation_config|tokenizer_config|special_tokens_map|added_tokens|(target_)?vocab|diglot)\.json"
)
_TOKENIZERS = re.compile(r"(tokenizer\.json|[\w.-]+\.(spm|model))")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w.-]{1,200})?")
_TIMEOUT = 20  # seconds


def is_name(text: str) -> bool:
    """Return whether a text can only be the name of a model on the Hub: OWNER/NAME, or OWNER/NAME@REVISION.

    If OWNER is a local folder, the text is a path, such as that of a run that does not exist.
    """
    if not _NAME.fullmatch(text) or text.endswith(".ckpt"):
        return False
    return not Path(text).exists() and not Path(text.partition("/")[0]).exists()


def is_commit(text: str) -> bool:
    """Return whether a text is a name with its commit, OWNER/NAME@COMMIT, as `fetch` returns it."""
    return _NAME.fullmatch(text) is not None and re.search("@[0-9a-f]{40}$", text) is not None


def fetch(name: str, key: str) -> str:
    """Fetch the files of a model that diglot reads, unless the Hub's cache has them. Only files of data are fetched.

    Args:
        name: a name that the user typed; see `is_name`.
        key: the config key of the name, for messages.

    Returns:
        The name with the commit of its files: OWNER/NAME@COMMIT.

    Raises:
        UserError: there is no such model, it lacks a file, or it cannot be fetched.
    """
    from huggingface_hub import HfApi, snapshot_download

    repository, _, revision = name.partition("@")
    with _user_errors(name, key):
        try:
            info = HfApi().model_info(repository, revision=revision or None, timeout=_TIMEOUT)
        except Exception:
            if (kept := cached(name)) is None:
                raise
            return f"{repository}@{kept.name}"  # the cache suffices without a network
        files = needed([file.rfilename for file in info.siblings or ()])
        if not files:
            raise UserError(f"{key}={name}: this repository of the Hub has no weights for PyTorch with a config.json")
        # Given a branch, the cache also remembers its commit.
        folder = Path(snapshot_download(repository, revision=revision or None, allow_patterns=files))
    return f"{repository}@{folder.name}"


def needed(files: Sequence[str]) -> list[str]:
    """Return the files to fetch of those in a repository; none if it has no config.json or no weights."""
    kind = next((kind for kind in WEIGHTS if kind in files), None)
    if kind is None or "config.json" not in files:
        return []
    shards = WEIGHTS[kind]
    weights = [kind, *(file for file in files if shards and re.fullmatch(shards, file))]
    return [*weights, *(file for file in files if _OTHERS.fullmatch(file) or _TOKENIZERS.fullmatch(file))]


def cached(name: str) -> Path | None:
    """Return the folder of the Hub's cache that holds a model, or None if there is none. The network is not used."""
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = name.partition("@")
    config = try_to_load_from_cache(repository, "config.json", revision=revision or None)
    return Path(config).parent if isinstance(config, str) else None


def is_in_cache(path: Path) -> bool:
    """Return whether a path lies in the Hub's cache, into which diglot writes nothing of its own."""
    from huggingface_hub import constants

    return path.resolve().is_relative_to(Path(constants.HF_HUB_CACHE).resolve())


@contextmanager
def _user_errors(name: str, key: str) -> Iterator[None]:
    """Convert the errors of the Hub's library into a UserError of one line."""
    from huggingface_hub import errors

    try:
        yield
    except UserError:
        raise
    except errors.GatedRepoError:
        page = f"https://huggingface.co/{name.partition('@')[0]}"
        raise UserError(f"{key}={name}: request access on {page} and log in with `hf auth login`") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{key}={name}: the Hub has this model, but not this revision") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"{key}={name}: no such file or folder here, and no such model on the Hub") from None
    except errors.HfHubHTTPError as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{key}={name}: the Hub does not answer as expected ({reason})") from None
    except Exception as error:  # the class depends on the HTTP library
        if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
            raise UserError(f"{key}={name}: {error.filename} cannot be written ({error.strerror})") from None
        raise UserError(
            f"{key}={name}: no such file or folder here, and the Hub cannot be reached ({type(error).__name__}); where "
            f"there is a network, type `hf download {name.replace('@', ' --revision ')} --local-dir FOLDER`, then "
            f"{key}=FOLDER here"
        ) from None
