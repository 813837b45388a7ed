"""What other programs read: a trained model in CTranslate2's format, and as safetensors.

ctranslate2: the converter. parity: whether the two engines say the same. safetensors: weights and config as plain data.
folder: where an export goes. Only ctranslate2 and parity need the extra `export`; each is imported when it is
needed. What CTranslate2 cannot hold is in diglot.config.exportable.
"""
