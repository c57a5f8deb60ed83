"""Several processes, one run: connected once, before any device is used, and of one mind.

They talk through the coordinator's key-value store and not through collectives: it needs no device
and no mesh, and every wait in it has an end.
"""

import hashlib
import json
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import shoal
from shoal.core.config import plain
from shoal.core.files import canonical_json
from shoal.jobs.place import recognize

START_S = 300
AGREE_S = 600
# How long jax waits for the others when a process ends: one that failed alone takes them along.
END_S = 30


def start_processes(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    heartbeat_s: int = 100,
) -> "Processes":
    """Connect this process with the others of its run: once, before any device is used.

    Args:
        environment: this process's own by default.
        heartbeat_s: a process that was not heard of for so long takes all others along.

    Raises:
        ValueError: `recognize` does, or there is no coordinator where it should be.
    """
    seen = os.environ if environment is None else environment
    place = recognize(seen, coordinator, num_processes, process_id)
    if place.count == 1 or place.coordinator is None:
        return Processes(place.index, place.count, place.origin)
    host = place.coordinator.rpartition(":")[0]
    local = host.strip("[]") in ("127.0.0.1", "localhost", "::1")
    if place.index:
        _await_coordinator(place.coordinator)

    import jax

    # It would take SIGTERM for itself and do nothing: a signal to stop is the training loop's.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        place.coordinator,
        place.count,
        place.index,
        local_device_ids=place.devices,
        cluster_detection_method="deactivate",
        initialization_timeout=START_S,
        heartbeat_timeout_seconds=heartbeat_s,
        shutdown_timeout_seconds=END_S,
        # On one machine nobody else needs to reach it.
        coordinator_bind_address=place.coordinator if local else None,
    )
    return Processes(place.index, place.count, place.origin)


def _await_coordinator(address: str, within_s: float = START_S) -> None:
    """Wait until process 0 listens; jax itself would abort with a stack instead of a sentence."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except OSError as error:
            if time.monotonic() > until:
                raise ValueError(
                    f"no coordinator at {address} within {within_s:g} s ({error}): is process 0"
                    " running, and is that its host and a port that it may listen on?"
                ) from error
            time.sleep(0.2)
        else:
            return


class Processes:
    """The processes of a run. All of them call the same methods in the same order.

    The last one to end must not be long after the first: call `barrier` at the end of a job whose
    process 0 has more to do than the others.

    Attributes:
        origin: how this process learned its place, as a line to print.
    """

    def __init__(self, index: int, count: int, origin: str) -> None:
        self.index = index
        self.count = count
        self.origin = origin
        self._calls = 0

    @property
    def leader(self) -> bool:
        return self.index == 0

    def barrier(self, name: str, timeout_s: float = AGREE_S) -> None:
        """Wait until every process is here.

        Raises:
            RuntimeError: not all were within the time; it says which.
        """
        if self.count > 1:
            self._meet(self._key(name), timeout_s)

    def agree(self, config: Any, timeout_s: float = AGREE_S) -> None:
        """Refuse, in every process, a run whose processes hold different configs.

        Every process sends a digest; only if these differ, process 0 and the first that differs
        send what they hold. The versions of shoal and jax are compared too.

        Raises:
            ValueError: names the processes, the fields and both values.
        """
        if self.count == 1:
            return
        import jax

        mine = {"shoal": shoal.__version__, "jax": jax.__version__, **_flat(plain(config))}
        digest = hashlib.sha256(canonical_json(mine).encode()).hexdigest()
        held = self.gather(digest, timeout_s)
        others = [index for index in range(self.count) if held[index] != held[0]]
        if not others:
            return
        key = self._key("agree")
        if self.index in (0, others[0]):
            _client().key_value_set(f"{key}/config/{self.index}", canonical_json(mine))
        first, second = (
            json.loads(self._get(f"{key}/config/{index}", timeout_s)) for index in (0, others[0])
        )
        raise ValueError(_disagreement(first, second, others))

    def broadcast_json(self, value: Any, timeout_s: float = AGREE_S) -> Any:
        """Return process 0's value in every process, in JSON types."""
        return self.from_leader(lambda: value, timeout_s)

    def from_leader(self, make: Callable[[], Any], timeout_s: float = AGREE_S) -> Any:
        """Let process 0 make something and return it, in JSON types, in every process.

        Raises:
            ValueError: process 0 raised it, and so does every other.
        """
        key = self._key("leader")
        if self.leader:
            try:
                said = canonical_json({"value": make()})
            except (ValueError, OSError) as error:
                if self.count > 1:
                    _client().key_value_set(key, canonical_json({"error": str(error)}))
                raise
            if self.count > 1:
                _client().key_value_set(key, said)
        else:
            said = self._get(key, timeout_s)
        content = json.loads(said)
        if "error" in content:
            raise ValueError(f"process 0: {content['error']}")
        return content["value"]

    def gather(self, value: Any, timeout_s: float = AGREE_S) -> list[Any]:
        """Return every process's value, in JSON types, in the order of the processes."""
        said = canonical_json(value)
        if self.count == 1:
            return [json.loads(said)]
        key = self._key("gather")
        _client().key_value_set(f"{key}/{self.index}", said)
        self._meet(f"{key}/all", timeout_s)
        found = dict(_client().key_value_dir_get(f"{key}/"))
        return [json.loads(found[f"{key}/{index}"]) for index in range(self.count)]

    def share(self, items: list[str]) -> list[str]:
        """Return this process's part of the items; the parts of all processes are all of them."""
        return items[self.index :: self.count]

    def stops(self, asked: bool, step: int, what: str = "stop") -> bool:
        """Whether all processes stop after this step, some having been asked to.

        Signals reach processes at different steps; this makes it one step for all. Called after
        every step, when its results, which need every process, are known: then no process is more
        than one step ahead, and what one of them writes before the next step all read after it.

        Args:
            asked: this process got a signal.
            what: they do instead of stopping; a name serves once.
        """
        if self.count == 1:
            return asked
        agreed = _try_get(f"shoal/{what}")
        if agreed is None and asked:
            # Another may write at the same moment: then it is at the same step.
            _client().key_value_set(f"shoal/{what}", str(step + 1), allow_overwrite=True)
        return agreed is not None and step >= int(agreed)

    def _key(self, name: str) -> str:
        self._calls += 1
        return f"shoal/{self._calls}/{name}"

    def _meet(self, key: str, timeout_s: float) -> None:
        from jax.errors import JaxRuntimeError

        try:
            _client().wait_at_barrier(key, _ms(timeout_s))
        except JaxRuntimeError as error:
            waited = f"process {self.index} waited {timeout_s:g} s at {key!r} for others"
            raise RuntimeError(f"{waited}: {error}") from error

    def _get(self, key: str, timeout_s: float) -> str:
        from jax.errors import JaxRuntimeError

        try:
            return _client().blocking_key_value_get(key, _ms(timeout_s))
        except JaxRuntimeError as error:
            waited = f"process {self.index} waited {timeout_s:g} s for {key!r}"
            raise RuntimeError(f"{waited}: {error}") from error


def _client() -> Any:
    # The one way to the coordinator's store: jax makes it public only wrapped in collectives.
    from jax._src.distributed import global_state

    assert global_state.client is not None, "start_processes comes first"
    return global_state.client


def _try_get(key: str) -> str | None:
    from jax.errors import JaxRuntimeError

    try:
        return _client().key_value_try_get(key)
    except JaxRuntimeError as error:
        if "NOT_FOUND" not in str(error):
            raise
        return None


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    below = [_flat(item, f"{prefix}.{key}" if prefix else key) for key, item in value.items()]
    return {path: leaf for part in below for path, leaf in part.items()}


def _disagreement(first: dict[str, Any], second: dict[str, Any], others: list[int]) -> str:
    paths = sorted(
        path for path in first.keys() | second.keys() if _spell(first, path) != _spell(second, path)
    )
    shown = "; ".join(
        f"{path} is {_short(_spell(second, path))} in process {others[0]} and"
        f" {_short(_spell(first, path))} in process 0"
        for path in paths[:4]
    )
    more = f"; and {len(paths) - 4} more" if len(paths) > 4 else ""
    who = f"process {others[0]} holds" if len(others) == 1 else f"processes {_list(others)} hold"
    return (
        f"{who} another config than process 0: {shown}{more}; start all of them with the same"
        " version, recipe and --set"
    )


def _list(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def _spell(config: dict[str, Any], path: str) -> str:
    return json.dumps(config[path], ensure_ascii=False) if path in config else "absent"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
