"""The properties of each key of a run's config besides its value, and what to type for the names of other toolkits."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

from diglot.data.noise import Noise


@dataclass(frozen=True)
class Meaning:
    """The properties of a key. These defaults apply to everything that the table does not mention.

    Attributes:
        on_resume: the treatment of a new value when a run resumes. "refuse": it is an error, since the value would make
            it another run. "take effect": the new value applies from then on, and is reported. "ignore": the value does
            not affect training.
        hashed: whether the key enters the hash that identifies a job of a sweep. "always". "if given": unless the value
            is null, which is the same as a missing key. "never". "as typed": not in the job's hash, but an override of
            the key enters the hash of the sweep's folder, so another value starts another sweep.
        formerly: the value that a config from before the key existed stands for. It does not enter the hash.
        formerly_in: the class whose parameter `formerly` is about, if other classes had the key before.
        content: for a key whose value is a path: the name of the content that a run compares instead, see
            `diglot.runs.contents`.
        in_checkpoints: whether every checkpoint stores the value itself, so that it must not be a secret.
        may_rotate: whether a text from the environment, such as a service's password, may change between a run and its
            resumption.
        settled: whether a run's config stores the resulting value, such as the precision that `auto` chose, instead of
            the typed one.
        is_hyper_parameter: whether a table of runs has a column for the key.
        of_vocabulary: whether the key determines the run's tokenizer, as `init_from` does.
        determines: what the key determines, if other keys determine the same. Only one of them may be typed.
        instead: for a library's parameter that a config must not set: the key to use, or why none is needed.
        given_by_code: whether the code that builds the node sets the key, so that a config must not.
        in_sweep: for a key that only a single run may set: what to do in a sweep instead.
        kind: the class that the node's target must be, or return. (The parameters of a target are annotated, and their
            annotations determine the kinds of its parts.)
    """

    on_resume: Literal["refuse", "take effect", "ignore"] = "refuse"
    hashed: Literal["always", "if given", "as typed", "never"] = "always"
    formerly: Any = None
    formerly_in: str | None = None
    content: str | None = None
    in_checkpoints: bool = False
    may_rotate: bool = False
    settled: bool = False
    is_hyper_parameter: bool = False
    of_vocabulary: bool = False
    determines: str | None = None
    instead: str | None = None
    given_by_code: bool = False
    in_sweep: str | None = None
    kind: str | None = None

    def value_before(self, target: Any) -> Any:
        """Return `formerly` for a key of a class, or None if it is about another class.

        Args:
            target: the class of the node that has the key, if the node has one.
        """
        return self.formerly if self.formerly_in in (None, target) else None


_LENGTH = "the length of the run"
_SINUSOIDAL = "diglot.model.position.Sinusoidal"

# `*` matches any one name. `.**` at the end matches the key itself and everything below it. Only the most specific of
# the patterns that match a key applies.
MEANINGS: dict[str, Meaning] = {
    # Top-level keys.
    "seed": Meaning(is_hyper_parameter=True),
    "label_smoothing": Meaning("take effect", is_hyper_parameter=True),
    "init_from": Meaning(content="init_from"),
    # The weights that are trained. Hashes from before the keys existed stay valid.
    "freeze": Meaning(formerly=[]),
    "learning_rates": Meaning("take effect", "if given", is_hyper_parameter=True),
    "learning_rates.**": Meaning("take effect", is_hyper_parameter=True),
    "lora": Meaning(hashed="if given"),
    "lora.**": Meaning(is_hyper_parameter=True),
    "resume": Meaning("ignore", "never", in_sweep="type the sweep's command again to resume its jobs"),
    "objective": Meaning("ignore", "never"),
    "export": Meaning("ignore", "if given"),  # hashes from before the key existed stay valid
    "trust.**": Meaning("ignore", "as typed"),
    # The text. tokenizer.vocab_size takes its value from data.vocab_size.
    "data": Meaning(kind="diglot.data.corpus.Corpus"),
    "data.train.**": Meaning(content="text"),
    "data.dev.**": Meaning(content="text"),
    "data.test.**": Meaning(content="text"),
    # Hashes from before these keys existed stay valid.
    **{
        f"data.{split}.{key}": Meaning(hashed="if given", content="text")
        for split in ("train", "dev", "test")
        for key in ("jsonl", "file")
    },
    **{
        f"data.{split}.{key}": Meaning(hashed="if given", content=content)
        for split in ("dev", "test")
        for key, content in (("references", "text"), ("reference_columns", None))
    },
    "data.further_dev": Meaning(hashed="if given"),
    **{
        f"data.further_dev.*.{key}": Meaning(content="text")
        for key in ("src", "tgt", "tsv", "csv", "jsonl", "file", "references", "hub", "data_files.**")
    },
    "data.reader": Meaning(hashed="if given"),
    **{f"data.{key}": Meaning(hashed="if given") for key in ("dev_size", "test_size", "split_seed")},  # null: data=hub
    "data.path.**": Meaning(content="text"),
    "data.data_files.**": Meaning(content="text"),
    "data.corpora.*.src": Meaning(content="text"),
    "data.corpora.*.tgt": Meaning(content="text"),
    "data.corpora.*.tsv": Meaning(content="text"),
    "data.corpora.*.csv": Meaning(content="text"),
    "data.corpora.*.jsonl": Meaning(content="text"),
    "data.corpora.*.file": Meaning(content="text"),
    "data.name": Meaning(in_checkpoints=True),
    "data.src_lang": Meaning(in_checkpoints=True),
    "data.tgt_lang": Meaning(in_checkpoints=True),
    "data.vocab_size": Meaning(is_hyper_parameter=True, of_vocabulary=True),
    "data.tokens_per_batch": Meaning(is_hyper_parameter=True),
    "data.batches_per_update": Meaning(is_hyper_parameter=True),
    "data.shapes": Meaning(settled=True),
    "data.noise": Meaning(formerly={"_target_": "diglot.data.noise.Noise", **asdict(Noise())}),
    "data.cache_dir": Meaning("ignore", "as typed"),
    "data.n_workers": Meaning("ignore"),
    "data.n_processes": Meaning("ignore"),
    "data.eval_tokens_per_batch": Meaning("ignore"),
    # The tokenizer. samples, alpha and seed are not of_vocabulary: `init_from`'s tokenizer may segment at random, too.
    "tokenizer": Meaning(of_vocabulary=True, kind="diglot.data.tokenizer.TokenizerSource"),
    "tokenizer.**": Meaning(of_vocabulary=True),
    "tokenizer.model": Meaning(content="tokenizer.model", of_vocabulary=True),
    "tokenizer.tgt_model": Meaning(content="tokenizer.tgt_model", of_vocabulary=True),
    "tokenizer.pieces": Meaning(content="tokenizer.pieces", of_vocabulary=True),
    "tokenizer.placeholder": Meaning(in_checkpoints=True, of_vocabulary=True),
    "tokenizer.*.placeholder": Meaning(in_checkpoints=True, of_vocabulary=True),
    # A run keeps its tokenizer, and the result is the same if the size fits. Hashes from before the key stay valid.
    "tokenizer.must_fit": Meaning("ignore", "never", of_vocabulary=True),
    "tokenizer.*.must_fit": Meaning("ignore", "never", of_vocabulary=True),
    "tokenizer.samples": Meaning(),
    "tokenizer.alpha": Meaning(),
    "tokenizer.seed": Meaning(),
    # The model and the search. Every checkpoint holds their complete config.
    "model": Meaning(in_checkpoints=True, is_hyper_parameter=True, kind="diglot.model.EncoderDecoder"),
    "model.**": Meaning(in_checkpoints=True, is_hyper_parameter=True),
    # Hashes from before these keys existed stay valid.
    **{
        f"model.{key}": Meaning(in_checkpoints=True, is_hyper_parameter=True, formerly=value)
        for key, value in {
            "bias": True,
            "embedding_norm": False,
            "scale_embeddings": True,
            "output_bias": False,
        }.items()
    },
    **{
        f"model.*.{key}": Meaning(in_checkpoints=True, is_hyper_parameter=True, formerly=value, formerly_in=_SINUSOIDAL)
        for key, value in {"base": 10_000.0, "offset": 0}.items()
    },
    "model.src_vocab_size": Meaning(instead="use tokenizer.vocab_size"),
    "model.tgt_vocab_size": Meaning(instead="use tokenizer.tgt_vocab_size"),
    "model.vocab_size": Meaning(instead="use tokenizer.vocab_size"),
    "search": Meaning(in_checkpoints=True, kind="diglot.decoding.Search"),
    "search.**": Meaning(in_checkpoints=True),
    # The optimizer's and scheduler's values may change between updates. The optimizer's class may not: its state
    # belongs to the class.
    "optimizer": Meaning("take effect", is_hyper_parameter=True, kind="torch.optim.Optimizer"),
    "optimizer.**": Meaning("take effect", is_hyper_parameter=True),
    "optimizer._target_": Meaning(),
    "optimizer.lr": Meaning(instead="use scheduler.lr"),
    "optimizer.params": Meaning(instead="use freeze"),
    "scheduler": Meaning("take effect", is_hyper_parameter=True, kind="torch.optim.lr_scheduler.LRScheduler"),
    "scheduler.**": Meaning("take effect", is_hyper_parameter=True),
    "scheduler.optimizer": Meaning(instead="use optimizer"),
    "scheduler.total_updates": Meaning(instead="use run.updates"),
    # The metrics of dev and test. The one that ranks validations is fixed, so that all of a run's are comparable.
    "metric": Meaning(
        "take effect",
        formerly={
            name: {"_target_": f"diglot.evaluation.metrics.{kind}"}
            for name, kind in {"bleu": "Bleu", "chrf": "Chrf", "ter": "Ter"}.items()
        },
    ),
    "metric.**": Meaning("take effect"),
    "metric.*": Meaning("take effect", kind="diglot.evaluation.metrics.Metric"),
    "run.monitor": Meaning("refuse", "if given", formerly="bleu"),
    # The run. Its config counts in updates once the data is known.
    "run": Meaning("take effect", kind="diglot.training.run.Budget"),
    "run.**": Meaning("take effect"),
    "run.updates": Meaning("take effect", determines=_LENGTH, is_hyper_parameter=True),
    "run.passes": Meaning("take effect", determines=_LENGTH, settled=True),
    "run.test": Meaning("ignore", "never"),
    "run.folder": Meaning("ignore", "never", in_sweep="for the folder of all jobs, type sweep.folder=FOLDER"),
    # Lightning's trainer. The precision of the weights and of the optimizer's state is fixed, even if chosen by `auto`.
    "trainer": Meaning("take effect", kind="lightning.Trainer"),
    "trainer.**": Meaning("take effect"),
    "trainer.precision": Meaning("refuse", settled=True),
    "trainer.max_steps": Meaning("take effect", determines=_LENGTH, settled=True),
    "trainer.log_every_n_steps": Meaning("ignore"),
    "trainer.process_timeout": Meaning("ignore"),
    "trainer.max_epochs": Meaning(instead="use run.passes"),
    "trainer.min_epochs": Meaning(instead="use run.passes"),
    "trainer.min_steps": Meaning(instead="use run.updates"),
    "trainer.limit_train_batches": Meaning(instead="use run.updates"),
    "trainer.limit_val_batches": Meaning(instead="use data (the complete dev text is always scored)"),
    "trainer.limit_test_batches": Meaning(instead="use data (the complete test text is always scored)"),
    "trainer.overfit_batches": Meaning(instead="use data.train (a small file) and run.updates"),
    "trainer.accumulate_grad_batches": Meaning(instead="use data.batches_per_update"),
    "trainer.val_check_interval": Meaning(instead="use run.validate_every"),
    "trainer.check_val_every_n_epoch": Meaning(instead="use run.validate_every"),
    "trainer.logger": Meaning(instead="use logger"),
    "trainer.callbacks": Meaning(instead="use callbacks"),
    "trainer.plugins": Meaning(given_by_code=True),
    "trainer.default_root_dir": Meaning(instead="use run.folder"),
    "trainer.enable_checkpointing": Meaning(instead="use run.validate_every (a checkpoint follows each validation)"),
    "trainer.use_distributed_sampler": Meaning(instead="each process already gets its own batches"),
    "trainer.reload_dataloaders_every_n_epochs": Meaning(instead="a run is a single pass of its loader"),
    # Any number of classes, each under a name. A callback may change training; watchers and loggers do not.
    "callbacks.*": Meaning(may_rotate=True, kind="lightning.Callback"),
    "callbacks.*.**": Meaning(may_rotate=True),
    "watch.**": Meaning("ignore"),
    "watch.*": Meaning("ignore", kind="lightning.Callback"),
    # Hashes from before the key existed stay valid.
    "watch.records": Meaning(
        "ignore",
        kind="lightning.Callback",
        formerly={
            "_target_": "diglot.training.flight_recorder.FlightRecorder",
            **{"window": 100, "deviations": 10.0, "limit": 3},
        },
    ),
    "logger.**": Meaning("ignore"),
    "logger.*": Meaning("ignore", kind="lightning.pytorch.loggers.Logger"),
    "logger.*.folder": Meaning("ignore", given_by_code=True),
    "logger.*.resumed": Meaning("ignore", given_by_code=True),
    # What a sweep varies (sweep=NAME) makes it another sweep; its folder does not.
    "sweep": Meaning("ignore", "as typed"),
    "sweep.**": Meaning("ignore", "never"),
    # Hydra's folders.
    "hydra.run.dir": Meaning(instead="use run.folder"),
    "hydra.sweep.dir": Meaning(instead="use sweep.folder"),
}

# The parameters that a model passes to its parts, each with the model's key that it comes from.
_GIVEN_TO_PARTS: dict[str, dict[str, str | None]] = {
    "position": {"d_model": "d_model", "n_heads": "n_heads", "d_head": "d_head", "causal": None},
    "residual": {"d_model": "d_model", "norm": "norm", "dropout": "dropout", "sublayer": None, "depth": None},
    "norm": {"normalized_shape": "d_model"},
    "feed_forward": {"d_model": "d_model", "d_ff": "d_ff", "dropout": "activation_dropout", "bias": "bias"},
}
MEANINGS |= {
    f"model.{part}.{name}": Meaning(instead=f"use model.{key}" if key else "the model sets it")
    for one, given in _GIVEN_TO_PARTS.items()
    for part in (one, f"decoder_{one}")
    for name, key in given.items()
}


@lru_cache(maxsize=10_000)
def meaning_of(key: str) -> Meaning:
    """Return the properties of a key.

    Args:
        key: a dotted key, as in `data.train.src`. It need not exist.
    """
    return next((meaning for pattern, meaning in _SPECIFIC_FIRST if pattern.fullmatch(key)), Meaning())


def _specificity(pattern: str) -> tuple[int, bool, int]:
    names = pattern.removesuffix(".**").split(".")
    return len(names), not pattern.endswith(".**"), -names.count("*")


def _compiled(pattern: str) -> re.Pattern[str]:
    names = pattern.removesuffix(".**").split(".")
    key = r"\.".join(r"[^.]+" if name == "*" else re.escape(name) for name in names)
    return re.compile(key + (r"(\..+)?" if pattern.endswith(".**") else ""))


_SPECIFIC_FIRST = [
    (_compiled(pattern), MEANINGS[pattern]) for pattern in sorted(MEANINGS, key=_specificity, reverse=True)
]

# What to type for names of other toolkits (fairseq, OpenNMT, Hugging Face, JoeyNMT, Lightning) that are no keys here.
# Each line to type, in which {} stands for the typed value, is followed by the names. A name with a dot needs that
# parent; any other name may have any parent. If a name has several lines, a command's is the first whose keys it has.
FOREIGN_NAMES = {
    # Optimizer and schedule.
    "scheduler.lr={}": "lr learning_rate peak_lr lr_peak max_lr base_lr init_lr",
    "scheduler.warmup={}": "warmup warmup_steps warmup_updates num_warmup_steps n_warmup_steps learning_rate_warmup",
    "scheduler.warmup=N (updates)": "warmup_ratio warmup_proportion warmup_epochs",
    "scheduler={}": "lr_scheduler lr_scheduler_type lr_schedule decay_method scheduling",
    "optimizer={}": "optim optimiser optimizer_type optimizer_name",
    "optimizer=adamw optimizer.weight_decay={}": "weight_decay wd l2",
    "optimizer.betas=[0.9,0.98]": "adam_betas adam_beta1 adam_beta2 beta1 beta2",
    "optimizer.eps={}": "adam_eps adam_epsilon",
    "trainer.gradient_clip_val={}": "clip_norm clip_grad_norm max_grad_norm grad_clip gradient_clip gradient_clipping",
    "freeze=[encoder]": "freeze_encoder",
    "freeze=[embeddings]": "freeze_embeddings freeze_embeds freeze_word_vecs",
    "label_smoothing={}": "smoothing label_smoothing_factor",
    # Batches.
    "data.max_rows={} (sentence pairs) or data.tokens_per_batch=N (tokens)": (
        "batch_size train_batch_size per_device_train_batch_size bsz micro_batch_size max_sentences"
    ),
    "tokens_per_batch=N (tokens)": "batch_size max_sentences",
    "data.tokens_per_batch={}": "max_tokens batch_tokens max_tokens_per_batch tokens_per_batch",
    "tokens_per_batch={}": "max_tokens batch_tokens max_tokens_per_batch",
    "data.eval_tokens_per_batch=N (tokens)": (
        "eval_batch_size valid_batch_size per_device_eval_batch_size batch_size_valid max_tokens_valid"
    ),
    "data.batches_per_update={}": (
        "accumulate_grad_batches gradient_accumulation_steps grad_accum accum_count update_freq batch_multiplier"
    ),
    "data.max_len={}": (
        "max_length max_len max_seq_len max_seq_length max_sent_length max_source_length max_target_length "
        "max_source_positions max_target_positions src_seq_length tgt_seq_length block_size"
    ),
    "data.n_workers={}": "num_workers n_workers workers dataloader_num_workers",
    # Length of the run, validation and checkpoints.
    "run.passes={}": "epochs epoch max_epochs max_epoch n_epochs num_epochs num_train_epochs",
    "run.updates={}": (
        "steps max_steps train_steps n_steps num_steps total_steps num_train_steps max_update max_updates num_updates "
        "total_num_update iterations max_iter max_iters"
    ),
    "run.validate_every={}": (
        "val_check_interval eval_steps valid_steps eval_every validate_interval_updates validation_freq val_every "
        "save_steps save_every save_interval_updates save_checkpoint_steps"
    ),
    "run.validate_every=N (updates)": "validate_interval save_interval eval_strategy save_strategy",
    "run.monitor={}": "early_stopping_metric best_checkpoint_metric metric_for_best_model",
    "run.keep_best={}": "keep_best_checkpoints keep_best_ckpts save_top_k",
    "run.keep_last={}": "save_total_limit keep_checkpoint keep_last_epochs keep_interval_updates keep_last_ckpts",
    "run.folder={}": "output_dir out_dir save_dir save_model model_dir default_root_dir exp_dir log_dir logdir",
    "output={}": "output_dir out_dir save_dir out output_file output_path results_path save_model",
    "resume={}": "resume_from resume_from_checkpoint restore_file train_from load_model ckpt_path",
    "init_from={}": "finetune_from_model pretrained pretrained_model model_name_or_path init_checkpoint",
    "callbacks=early_stopping": "patience early_stopping early_stopping_patience",
    # The machine.
    "trainer.precision=16-mixed": "fp16 amp use_amp half mixed_precision",
    "trainer.precision=bf16-mixed": "bf16 bfloat16",
    "trainer.precision={}": "precision dtype model_dtype",
    "precision=bfloat16": "fp16 half bf16 bfloat16",
    "precision=int8": "int8 quantize quantization quant",
    "trainer=gpu, or for several GPUs trainer=ddp trainer.devices={}": (
        "gpus gpu n_gpu n_gpus num_gpus gpu_ranks world_size cuda use_cuda use_gpu num_processes"
    ),
    "device=cuda": "gpus gpu n_gpu n_gpus num_gpus cuda use_cuda use_gpu",
    "trainer=gpu or trainer=cpu": "device no_cuda use_cpu",
    "device=cpu": "no_cuda use_cpu cpu",
    "trainer.num_nodes={}": "nodes n_nodes nnodes",
    "run.compile=true": "torch_compile use_compile",
    # Loggers.
    "trainer.log_every_n_steps={}": "logging_steps logging_freq log_interval log_every log_freq report_every",
    "logger=wandb": "wandb use_wandb wandb_project wandb_entity",
    "logger=tensorboard": "tensorboard tensorboard_logdir use_tensorboard logger=tb",
    "logger=mlflow": "mlflow use_mlflow",
    "logger={}": "report_to loggers",
    # Search.
    "search.beam_size={}": "beam beams beam_width num_beams n_beams beamsize",
    "search.length_penalty={}": "beam_alpha len_penalty",
    "search.length_penalty=N (an exponent, of (5 + length) / 6)": "lenpen length_alpha",
    "search.n_best={}": "nbest n_best num_return_sequences",
    "search.max_len_b={}": "max_new_tokens max_output_length max_decoding_length max_decode_length max_length max_len",
    "search=sample": "sampling do_sample random_sampling search=sampling search=top_k search=top_p search=nucleus",
    "search=sample search.top_k={}": "topk top_k sampling_topk random_sampling_topk",
    "search=sample search.top_p={}": "topp top_p sampling_topp random_sampling_topp",
    "search=sample search.temperature={}": "temperature sampling_temperature random_sampling_temp",
    "checkpoint={}": "ckpt ckpt_path path model models model_path model_name_or_path run",
    "input={}": "source src input_file source_file src_file",
    "references={}": "ref refs reference reference_file",
    # The model.
    "model={}": "arch architecture encoder_type decoder_type",
    "model.d_model={}": (
        "hidden_size hidden_dim hid_dim dim embed_dim emb_dim emb_size embedding_dim embedding_size word_vec_size "
        "rnn_size n_embd encoder_embed_dim decoder_embed_dim"
    ),
    "model.d_ff={}": (
        "ffn_dim ff_dim ff_size ffn_size transformer_ff dim_feedforward intermediate_size ffn_embed_dim "
        "encoder_ffn_dim decoder_ffn_dim encoder_ffn_embed_dim decoder_ffn_embed_dim"
    ),
    "model.n_heads={}": (
        "heads num_heads nhead attention_heads num_attention_heads encoder_attention_heads decoder_attention_heads"
    ),
    "model.d_head={}": "head_dim head_size d_kv kv_channels",
    "model.n_kv_heads={}": "kv_heads num_kv_heads num_key_value_heads",
    "model.n_encoder_layers={}": "enc_layers encoder_layers num_encoder_layers encoder.num_layers encoder.layers",
    "model.n_decoder_layers={}": "dec_layers decoder_layers num_decoder_layers decoder.num_layers decoder.layers",
    "model.n_encoder_layers={0} model.n_decoder_layers={0}": "layers num_layers n_layers n_layer num_hidden_layers",
    "model.dropout={}": "dropout_rate hidden_dropout hidden_dropout_prob resid_pdrop",
    "model.attention_dropout={}": "attn_dropout attention_probs_dropout_prob attn_pdrop",
    "model.activation_dropout={}": "relu_dropout ffn_dropout",
    "model.tying=all": "share_all_embeddings share_embeddings tied_embeddings tie_word_embeddings tie_embeddings",
    "model.tying=target": "share_decoder_input_output_embed share_decoder_embeddings tied_softmax",
    "model.embedding_norm=true": "normalize_embedding layernorm_embedding",
    "model.scale_embeddings={}": "scale_embedding embed_scale",
    "model.scale_embeddings=false": "no_scale_embedding",
    "model/feed_forward={}": "activation activation_fn activation_function hidden_act pos_ffn_activation_fn",
    "model/position={}": "position_encoding positional_encoding pos_enc position_embedding position_embedding_type",
    "model/residual=pre_norm": "normalize_before encoder_normalize_before decoder_normalize_before norm_first prenorm",
    # Text and tokenizers.
    "data=files data.train.src=FILE data.train.tgt=FILE": "trainpref train_file train_data train_path dataset corpus",
    "data=files data.train.src={}": "train_src src_train data.src",
    "data=files data.train.tgt={}": "train_tgt tgt_train data.tgt",
    "data=files data.train.file={}": (
        "data.train.file data.file data.tmx data.xliff data.po data.parquet train.tmx train.xliff train.parquet"
    ),
    "data=files data.train.tsv={}": "data.tsv",
    "data=files data.train.csv={}": "data.csv",
    "data=files data.train.jsonl={}": "data.jsonl data.json",
    "data=files data.dev.src={}": "valid_src dev_src val_src",
    "data=files data.dev.tgt={}": "valid_tgt dev_tgt val_tgt",
    "data.src_lang={} (with data=files, data=hub or data=mixed)": "source_lang source_language src_language",
    "data.tgt_lang={} (with data=files, data=hub or data=mixed)": "target_lang target_language tgt_language",
    "tgt_lang={}": "target_lang target_language tgt_language",
    "tokenizer.vocab_size={}": "src_vocab_size voc_limit vocab_limit bpe_size num_merges bpe_operations",
    "tokenizer=files tokenizer.model={}": "spm_model sentencepiece_model tokenizer_path tokenizer_name",
    "tokenizer=extend tokenizer.pieces={}": "tokenizer.extend additional_special_tokens add_tokens new_tokens",
    "tokenizer={}": "subword_type src_subword_type tokenizer_type",
    "seed={}": "random_seed manual_seed random_state",
    # Choices.
    "scheduler=paper": "scheduler=noam scheduler=transformer scheduler=vaswani",
    "scheduler=inverse_sqrt": "scheduler=rsqrt scheduler=inverse_square_root scheduler=warmupinversesquareroot",
    "scheduler=linear": "scheduler=polynomial scheduler=polynomial_decay scheduler=linear_with_warmup",
    "scheduler=constant": "scheduler=fixed scheduler=constant_with_warmup",
    "scheduler=cosine": "scheduler=cosine_with_warmup",
    "optimizer=adamw": "optimizer=adamw_torch optimizer=fusedadam",
    "model=base": "model=transformer model=transformer_base model=vaswani",
    "model=big": "model=transformer_big model=large model=vaswani_big",
    "model=tiny": "model=small model=transformer_tiny",
    "model=iwslt": "model=transformer_iwslt_de_en",
    "model=gru_attention": "model=rnn model=lstm model=gru model=seq2seq model=rnnsearch model=luong",
    "model/position=rotary": "model/position=rope",
    "model/position=relative_bias": "model/position=t5 model/position=relative",
    "model/position=sinusoidal": "model/position=sin model/position=sine model/position=fixed",
    "model/position=learned": "model/position=absolute model/position=embedding model/position=embeddings",
    "model/feed_forward=swiglu": "model/feed_forward=swish model/feed_forward=silu model/feed_forward=gated_silu",
    "tokenizer=unigram": "tokenizer=sentencepiece tokenizer=spm tokenizer=sp",
    "trainer=gpu": "trainer=cuda trainer=single_gpu",
    "trainer=ddp": "trainer=multi_gpu trainer=distributed trainer=gpus",
    "data=hub": "data=huggingface data=hf data=datasets",
    "data=files": "data=file data=local data=text data=tsv data=csv data=custom",
}
_OFF = ("false", "0", "null", "none", "no", "off")


def foreign(name: str, value: str | None, exists: Callable[[str], bool]) -> str | None:
    """Return what to type for a name of another toolkit, or None if the name is not known or nothing here matches it.

    Args:
        name: an unknown key, or an unknown choice as GROUP=CHOICE.
        value: the value that was typed for the key; None: none.
        exists: returns whether the command has a key or group.
    """
    parts = name.lower().replace("-", "_").split(".")
    for i in range(len(parts)) if "=" not in name else (0,):
        for line in _LINES.get(".".join(parts[i:]), ()):
            if _is_typable(line, exists):
                if "{" not in line and value is not None and value.lower() in _OFF:
                    return "leave it out"
                filled = line.format(value if value is not None and re.fullmatch(r"[\w.,+/-]+", value) else "VALUE")
                return f"type {_LINES.get(filled, [filled])[0]}"
    return None


def _is_typable(line: str, exists: Callable[[str], bool]) -> bool:
    """Return whether a command has all keys of a line. A choice in the line may be the one that has the key."""
    keys = re.findall(r"([\w./]+)=", line)
    chosen = [key for key in keys if "." not in key and exists(key)]
    return all(exists(key) or key.partition(".")[0] in chosen for key in keys)


_LINES: dict[str, list[str]] = {}
for _line, _names in FOREIGN_NAMES.items():
    for _name in _names.split():
        _LINES.setdefault(_name, []).append(_line)
