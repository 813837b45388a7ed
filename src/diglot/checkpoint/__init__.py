"""Checkpoints: the file that holds a whole model, how it is written, and the average of several.

file: what a checkpoint says, and what is rebuilt from it. container: the file itself. plain: what is no tensor in it,
as JSON. format1: files of format 1, which conversion rewrites. atomic_io: Lightning's way to all of them.
averaging: the mean of several.
"""
