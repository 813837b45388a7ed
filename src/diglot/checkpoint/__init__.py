"""Checkpoints: the file that holds a complete model, how it is read and written, and the mean of several.

- file: writes a checkpoint, and rebuilds model, tokenizer and search from it.
- container: the file format.
- plain: everything but tensors, as JSON.
- format1: the reader of the earlier format.
- conversion: rewrites checkpoints of format 1.
- atomic_io: the plugin through which Lightning reads and writes checkpoints.
- averaging: the mean of several checkpoints.
"""
