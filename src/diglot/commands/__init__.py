"""The commands a user types: each reads its config, builds what it needs and says what it made.

start: where all begin. frame: compose, check, run, answer a mistake by one line. from_make: the words after
`make train`. output: where a command writes.
"""
