"""Checkpoints: the file that holds a complete model, how it is read and written, and the mean of several.

- file: writes a checkpoint, and rebuilds model, tokenizer and search from it.
- weights: whether weights fit a model, and loading them.
- training_state: whether a run can resume from a checkpoint.
- merging: low-rank adapters, merged into the weights.
- initial: the weights that a run with init_from starts with.
- huggingface_folder: reads a folder of the library transformers as a checkpoint.
- container: the file format.
- plain: everything but tensors, as JSON.
- format1: the reader of the earlier format.
- conversion: rewrites checkpoints of format 1.
- atomic_io: the plugin through which Lightning reads and writes checkpoints.
- averaging: the mean of several checkpoints.
"""
