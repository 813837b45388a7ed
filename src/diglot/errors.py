"""The one exception for mistakes a user can mend."""


class UserError(Exception):
    """A wrong config, file or argument. Commands print it as one line, without a traceback, and exit with 2."""


# The exit status of a run that a signal has ended and that can go on: EX_TEMPFAIL of sysexits.h.
RESUME_ME = 75
# That of a run whose loss or gradient was no number: the same again would come to the same.
NON_FINITE = 76
