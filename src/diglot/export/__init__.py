"""Export of trained models for other programs, in CTranslate2's format or as safetensors.

ctranslate2: the converter. parity: comparison of the two engines' output. safetensors: weights and config as plain
data. folder: the export's folder. Only ctranslate2 and parity need the extra `export`, and are imported only when
needed. diglot.config.exportable lists what CTranslate2 cannot represent.
"""
