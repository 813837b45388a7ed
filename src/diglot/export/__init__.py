"""Export of trained models for other programs, in CTranslate2's format or as safetensors.

- writing: the export of a checkpoint to a folder.
- ctranslate2: the converter.
- parity: comparison of the output of CTranslate2 and of diglot.
- safetensors: weights and config as plain data.
- folder: the export's folder.

Only ctranslate2 and parity need the extra `export`, and they are imported only when needed. diglot.config.exportable
checks whether CTranslate2 can represent a model.
"""
