"""The commands that a user types. Each reads its config, builds what it needs, and reports its output.

- start: the entry point of all commands.
- frame: composes and checks the config, runs the command, and reports a mistake in one line.
- from_make: the words after `make train`.
- output: the files that a command writes.
"""
