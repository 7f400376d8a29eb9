"""An iterator that is left open ends before Python does, while there is what it needs for it."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit

atexit.register(print, "Python ends")

from pagedrun.paged.llm import CompletionIterator

def work():
    try:
        yield 1
    finally:
        print("the iterator is closed")

iterator = CompletionIterator(work())
assert next(iterator) == 1
"""


@pytest.mark.heavy("a program that ends, in a process of its own")
def test_it_ends_before_the_program_is_torn_down() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["the iterator is closed", "Python ends"]
    assert (done.stderr, done.returncode) == ("", 0)
