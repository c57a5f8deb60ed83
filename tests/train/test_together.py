"""What the processes of a run do at the same time."""

import jax
import numpy as np

from shoal.train.together import ALONE, begin_together


class Recorded(type(ALONE)):
    """One process that notes when it would wait for others, and what had run by then."""

    def __init__(self, jitted):
        self.jitted = jitted
        self.calls = []

    def barrier(self, name, timeout_s=0.0):
        self.calls.append((name, self.jitted.runs))


class Counted:
    """A jitted function that counts its compilations and its runs."""

    def __init__(self, function):
        self.function = jax.jit(function)
        self.compiled = self.runs = 0

    def lower(self, *given):
        self.lowered = self.function.lower(*given)
        return self

    def compile(self):
        self.compiled += 1
        return self.lowered.compile()

    def __call__(self, *given):
        self.runs += 1
        return self.function(*given)


def test_a_program_is_compiled_before_the_wait_and_runs_only_after_it():
    program = Counted(lambda x: 2 * x)
    waits = Recorded(program)
    call = begin_together(program, waits, "step")
    assert waits.calls == []
    for value in (1.0, 2.0, 3.0):
        np.testing.assert_array_equal(call(value), 2 * value)
    assert waits.calls == [("compiled step", 0)]
    assert (program.compiled, program.runs) == (1, 3)


def test_compiling_ahead_does_not_compile_twice():
    traced = []

    def twice(x):
        traced.append(1)
        return x + x

    call = begin_together(jax.jit(twice, donate_argnums=0), ALONE, "step")
    call(jax.numpy.ones(3))
    call(jax.numpy.ones(3))
    assert len(traced) == 1
