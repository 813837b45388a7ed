"""The one exception for mistakes a user can mend."""


class UserError(Exception):
    """A wrong config, file or argument. Commands print its message as one line, without a traceback, and exit with 2."""
