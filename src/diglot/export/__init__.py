"""Export of trained models for other programs: for CTranslate2, for transformers, or as safetensors.

- writing: the export of a checkpoint to a folder.
- ctranslate2: the converter.
- parity: comparison of the output of CTranslate2 and of diglot.
- huggingface: the converter to a stock class of transformers; model_card: its README.md.
- huggingface_parity: comparison of the output of transformers and of diglot; transformers_worker runs without diglot.
- safetensors: weights and config as plain data.
- folder: the export's folder.

Only ctranslate2 and parity need the extra `export`, and only transformers_worker the extra `huggingface`. They are
imported only when needed. diglot.config.exportable checks whether CTranslate2 can represent a model, and
diglot.config.stock_class whether a class of transformers can.
"""
