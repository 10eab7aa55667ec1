"""A table of calls: each is a function that raises where an answer is not what it should be.

The server is told by PENSIEVE_URL; what its model says, by tests/src/slow/clients.rs.
"""

import asyncio
import inspect
import os
import sys
import traceback

URL = os.environ["PENSIEVE_URL"]
KEY = "pensieve-local-key"
MODEL = "scripted"

TABLE = []


def call(function):
    """Enters a function into the table."""
    TABLE.append(function)
    return function


def equal(found, expected):
    assert found == expected, f"{found!r} is not {expected!r}"


def refused(error, function):
    """The error that a function raises, which must be of this class."""
    try:
        function()
    except error as found:
        assert type(found) is error, f"{found!r} is not exactly {error.__name__}"
        return found
    raise AssertionError(f"nothing was refused, but {error.__name__} was expected")


def main():
    failures = 0
    for function in TABLE:
        try:
            result = function()
            if inspect.iscoroutine(result):
                asyncio.run(result)
            print("ok", function.__name__, flush=True)
        except Exception:
            failures += 1
            print("FAILED", function.__name__, flush=True)
            traceback.print_exc(file=sys.stdout)
    print(f"{len(TABLE)} calls, {failures} failed", flush=True)
    sys.exit(1 if failures else 0)
