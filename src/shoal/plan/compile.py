"""The real train step, traced and compiled for fake CPU devices without an array being made.

The number of devices must stand in the environment before jax starts, so each plan compiles in a
process of its own: `compiled_apart` starts it, `measured` is what runs inside.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from shoal.plan.walk import matmul_flops

_DEVICES_FLAG = "--xla_force_host_platform_device_count"
# The program is never run: half of the compile time would go into making it fast.
_OPTIONS = {"xla_backend_optimization_level": 0}


def compiled_apart(module: str, request: Mapping[str, Any], num_devices: int) -> dict[str, Any]:
    """Run `python -m module` on fake devices with a request on its input; return what it prints.

    Args:
        module: reads a JSON object from its input and prints one as its last line.

    Raises:
        RuntimeError: it ended with an error, whose end is quoted.
    """
    flags = [f for f in os.environ.get("XLA_FLAGS", "").split() if not f.startswith(_DEVICES_FLAG)]
    environment = {
        **os.environ,
        "XLA_FLAGS": " ".join([*flags, f"{_DEVICES_FLAG}={num_devices}"]),
        "JAX_PLATFORMS": "cpu",
    }
    said = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(request),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode != 0:
        raise RuntimeError(
            f"compiling on {num_devices} fake devices ended with {said.returncode}:"
            f" {said.stderr.strip()[-2000:]}"
        )
    return json.loads(said.stdout.splitlines()[-1])


def measured(step: Callable[..., Any], *arguments: Any, **jit: Any) -> dict[str, Any]:
    """Trace, lower and compile a function on abstract arguments that say where they stand.

    Returns:
        `arguments_bytes` and `temporary_bytes` of one device, arguments in host memory included;
        `matmul_flops` of all devices; seconds of tracing with lowering and of compiling; the
        process's peak memory in bytes and seconds of processor time.
    """
    import jax

    begun = time.perf_counter()
    traced = jax.jit(step, **jit).trace(*arguments)
    flops = matmul_flops(traced.jaxpr)
    lowered = traced.lower()
    middle = time.perf_counter()
    memory: Any = lowered.compile(compiler_options=_OPTIONS).memory_analysis()
    done = time.perf_counter()
    return {
        "arguments_bytes": memory.argument_size_in_bytes + memory.host_argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "matmul_flops": flops,
        "trace_s": middle - begun,
        "compile_s": done - middle,
        "processor_s": time.process_time(),
        "peak_process_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
