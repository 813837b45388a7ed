"""Weights are loaded only into the model that they were trained in."""

import pytest

from diglot.checkpoint.weights import refuse_other_model
from diglot.config import resolved
from diglot.errors import UserError


def test_a_model_from_before_a_choice_existed_has_its_default(compose_train):
    model = resolved(compose_train().model)
    later = ("qk_norm", "n_kv_heads", "embedding_dropout", "bias", "output_bias", "embedding_norm", "scale_embeddings")
    before = {key: value for key, value in model.items() if key not in later}
    refuse_other_model(model, before)
    refuse_other_model(before, model)
    with pytest.raises(UserError, match=r"model\.qk_norm is False in the checkpoint, but True here"):
        refuse_other_model({**model, "qk_norm": True}, before)


@pytest.mark.parametrize(
    "word",
    [
        "model.n_heads={encoder:4,decoder:4,cross:2}",
        "model/residual@model.decoder_residual=post_norm",
        "model.tying=none",
        "model.bias=false",
        "model.scale_embeddings=false",
    ],
)
def test_weights_of_another_model_are_refused_by_key(compose_train, word):
    with pytest.raises(UserError, match=word.partition("@")[2].partition("=")[0] or word.partition("=")[0]):
        refuse_other_model(resolved(compose_train(word).model), resolved(compose_train().model))


def test_weights_of_another_dropout_are_taken(compose_train):
    words = ("model.dropout=0.3", "model.embedding_dropout=0.2")
    refuse_other_model(resolved(compose_train(*words).model), resolved(compose_train().model))
