"""Building objects from config nodes: which keys go to which object."""

from collections.abc import Callable

import pytest
from omegaconf import DictConfig, OmegaConf

from diglot.config import build_corpus, build_data, check_tying, config_hash, keys_of, mistakes, settle_shapes
from diglot.data.corpus import Corpus, Sample
from diglot.data.options import DataOptions
from diglot.data.sampling import Sampling
from diglot.data.tokenizer import TokenizerSource
from diglot.errors import UserError
from diglot.model import Transformer


class Counting(Sample):
    """A corpus with parameters of its own. One has the name of an argument that the code passes to the data module."""

    def __init__(self, seed: int = 1, **others: object) -> None:
        super().__init__()
        self.seed, self.others = seed, others


class Greedy(Sample):
    """A corpus with a parameter that is also an option of batches."""

    def __init__(self, max_len: int = 9) -> None:
        super().__init__()


def node(corpus: type[Corpus], **keys: object) -> object:
    return OmegaConf.create({"_target_": f"{corpus.__module__}.{corpus.__qualname__}", **keys})


def test_options_of_batches_go_to_the_data_module_and_all_else_to_the_corpus(tokenizer):
    made = node(Counting, seed=7, more=8, max_len=50, tokens_per_batch=60, vocab_size=300, _convert_="all")
    corpus = build_corpus(made)
    assert isinstance(corpus, Counting)
    assert (corpus.seed, corpus.others) == (7, {"more": 8})
    data = build_data(made, corpus, tokenizer, Sampling(), seed=3)
    assert (data.seed, data.options.max_len, data.options.tokens_per_batch) == (3, 50, 60)


def test_a_corpus_that_asks_for_an_option_of_its_batches_is_refused_by_one_line():
    with pytest.raises(UserError, match=r"test_build\.Greedy has a parameter max_len, but data\.max_len is a batch"):
        build_corpus(node(Greedy))


class Unfinished(Sample):
    """A corpus that does not call the constructor of its base class."""

    def __init__(self) -> None:
        self.name, self.src_lang, self.tgt_lang = "unfinished", "avi", "bol"


def test_a_corpus_without_an_attribute_is_refused_by_one_line():
    with pytest.raises(UserError, match=r"Unfinished has no attribute notes: call super\(\).__init__\(\)"):
        build_corpus(node(Unfinished))


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("max_lenn", "there is no key data.max_lenn; did you mean data.max_len?"),
        ("corpus", "there is no key data.corpus"),
        ("sampling", "there is no key data.sampling"),
        ("max_len", "data.max_len='x': must be an integer"),
        ("vocab_size", "data.vocab_size='x': must be an integer"),
    ],
)
def test_a_key_of_a_data_node_is_one_of_its_corpus_or_of_its_batches(key, wanted):
    (said,) = mistakes({"_target_": "diglot.data.corpus.Sample", key: "x"}, "data", extra_keys=keys_of(DataOptions))
    assert said.startswith(wanted)


@pytest.mark.parametrize(
    ("overrides", "accelerator", "shapes"),
    [
        ([], "cpu", "free"),
        ([], "cuda", "fine_buckets"),
        (["run.compile=true"], "cpu", "buckets"),
        (["run.compile=true", "data.shapes=fine_buckets"], "cuda", "fine_buckets"),
        (["data.shapes=free"], "cuda", "free"),
    ],
)
def test_shapes_of_batches_suit_the_device_unless_they_are_typed(
    overrides: list[str], accelerator: str, shapes: str, compose_train: Callable[..., DictConfig]
) -> None:
    config = compose_train(*overrides).copy()
    settle_shapes(config, accelerator)
    assert config.data.shapes == shapes


def test_a_model_is_not_compiled_for_free_shapes(compose_train: Callable[..., DictConfig]) -> None:
    config = compose_train("run.compile=true", "data.shapes=free").copy()
    with pytest.raises(UserError, match=r"data\.shapes=free: run\.compile=true compiles a graph for each shape"):
        settle_shapes(config, "cpu")


@pytest.mark.parametrize(("tying", "instead"), [("all", "target"), ("inputs", "none")])
def test_separate_vocabularies_need_separate_matrices_even_if_their_sizes_are_equal(
    build_model: Callable[..., Transformer], tying: str, instead: str
) -> None:
    class Separate(TokenizerSource):
        is_joint = False

    with pytest.raises(UserError, match=f"model.tying={tying} needs one vocabulary .* type model.tying={instead}, or"):
        check_tying(build_model(f"model.tying={tying}"), Separate())
    check_tying(build_model(f"model.tying={instead}"), Separate())


def test_keys_of_the_model_with_their_former_values_leave_a_job_s_hash_as_it_was(
    compose_train: Callable[..., DictConfig],
) -> None:
    config = compose_train()
    before = OmegaConf.create(OmegaConf.to_container(config))
    for key in ("bias", "output_bias", "embedding_norm", "scale_embeddings"):
        del before.model[key]
    assert config_hash(before) == config_hash(config) != config_hash(compose_train("model.bias=false"))
