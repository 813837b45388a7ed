"""Values of config.json that diglot cannot represent are refused by key."""

from typing import Any

import pytest

from diglot.errors import UserError
from diglot.huggingface.configs import model_node

BART: dict[str, Any] = {
    **{"model_type": "bart", "d_model": 24, "encoder_layers": 2, "decoder_layers": 3},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40},
}
T5: dict[str, Any] = {"model_type": "t5", "d_model": 24, "d_kv": 10, "num_heads": 3, "d_ff": 40, "num_layers": 2}


@pytest.mark.parametrize(
    ("config", "change", "wanted"),
    [
        (
            BART,
            {"model_type": "bert"},
            "model_type=bert: must be one of bart, m2m_100, marian, mbart, mt5, pegasus, t5",
        ),
        (BART, {"model_type": None}, "model_type=null: must be one of"),
        (BART, {"d_model": None}, "d_model=null: must be a positive integer"),
        (BART, {"d_model": True}, "d_model=true: must be a positive integer"),
        (BART, {"encoder_layers": -1}, "encoder_layers=-1: must be a positive integer"),
        (BART, {"decoder_ffn_dim": 48}, "decoder_ffn_dim=48: encoder_ffn_dim is 40, and diglot has one d_ff"),
        (BART, {"activation_function": "quick_gelu"}, "activation_function=quick_gelu: must be one of gelu, "),
        (BART, {"dropout": 1.5}, "dropout=1.5: must be at least 0 and below 1"),
        (BART, {"scale_embedding": "yes"}, "scale_embedding=yes: must be true or false"),
        (BART, {"normalize_before": True}, "normalize_before=true: diglot reads this type of model only with false"),
        (BART, {"normalize_embedding": False}, "normalize_embedding=false: diglot reads this type of model only with"),
        (BART, {"static_position_embeddings": True}, "static_position_embeddings=true: diglot reads this type"),
        (BART, {"add_cross_attention": True}, "add_cross_attention=true: diglot reads this type of model only with"),
        (BART, {"is_encoder_decoder": False}, "is_encoder_decoder=false: diglot reads this type of model only with"),
        (BART, {"model_type": "m2m_100", "pad_token_id": -1}, "pad_token_id=-1: must be the id of a token"),
        (BART, {"model_type": "m2m_100", "d_model": 25}, "d_model=25: must be even and at least 4 for sinusoids"),
        (T5, {"feed_forward_proj": "gated-mish"}, "feed_forward_proj=mish: must be one of gelu, "),
        (T5, {"feed_forward_proj": "plain-relu"}, "feed_forward_proj=plain-relu: must be an activation, or gated- and"),
        (T5, {"feed_forward_proj": "gated-gelu", "d_ff": 42}, "d_ff=42: a gated network's width must be a multiple"),
        (T5, {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets=16: diglot reads this type"),
        (T5, {"relative_attention_max_distance": 64}, "relative_attention_max_distance=64: diglot reads this type"),
        (T5, {"layer_norm_epsilon": 0}, "layer_norm_epsilon=0: must be a number between 0 and 1"),
        (T5, {"num_layers": None}, "num_layers=null: must be a positive integer"),
    ],
)
def test_other_values_are_refused_with_key_and_value(
    config: dict[str, Any], change: dict[str, Any], wanted: str
) -> None:
    model_node(config)
    with pytest.raises(UserError) as refused:
        model_node({**config, **change})
    assert str(refused.value).startswith(f"config.json: {wanted}")
    assert "\n" not in str(refused.value)
