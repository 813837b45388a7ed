"""Checkpoints: the file that holds a complete model, how it is written, and the average of several.

file: the content of a checkpoint, and what is rebuilt from it. container: the file format. plain: everything but
tensors, as JSON. format1: files of format 1, which conversion rewrites. atomic_io: the plugin through which Lightning
reads and writes them. averaging: the mean of several.
"""
