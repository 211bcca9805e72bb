"""Random bytes asked for in bulk are given out once, to every thread and to no child again."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

from atdp import ids
from atdp.randomness import random_bytes


def test_bytes_have_the_length_that_was_asked_for_even_when_it_is_more_than_is_ready() -> None:
    assert [len(random_bytes(count)) for count in (0, 1, 12, 4095, 4096, 10_000)] == [0, 1, 12, 4095, 4096, 10_000]


def test_threads_are_never_given_the_same_bytes() -> None:
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: random_bytes(16), range(20_000)))
    assert len(set(taken)) == len(taken)


def test_a_child_process_does_not_give_out_what_its_parent_will() -> None:
    random_bytes(1)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, random_bytes(32))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ours, 32) != random_bytes(32)
    os.close(ours)
    os.close(theirs)


def test_a_child_that_is_forked_while_another_thread_makes_an_id_makes_ids_too() -> None:
    with ids._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(5)  # it would wait for ever
            ids.uuid7()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
