"""The one exception for mistakes a user can mend."""


class UserError(Exception):
    """A wrong config, file or argument. Commands print it as one line, without a traceback, and exit with 2."""
