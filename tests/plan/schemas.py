"""Schemas of the fields that `shoal launch` writes, and a check that takes no package.

Written from the facts of kubernetes-sigs/jobset as of August 2026, the resource definition in
config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml with Kubernetes' pod template in it, and of
skypilot-org/skypilot, sky/utils/schemas.py. A field that is not listed here is a problem: it is
misspelled, or new here and to be looked up there.
"""

import re
from typing import Any

_STRING, _INTEGER, _BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_LABEL = {"type": "string", "pattern": r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"}
_QUANTITY = {"type": ["integer", "string"], "pattern": r"[0-9]+([KMGTPE]i?)?"}


def _object(required: str = "", **fields: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": fields}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": values}


_ENV = _object(
    "name",
    name={"type": "string", "pattern": r"[-._a-zA-Z][-._a-zA-Z0-9]*"},
    value=_STRING,
    valueFrom=_object(fieldRef=_object("fieldPath", fieldPath=_STRING)),
)
_CONTAINER = _object(
    "name image",  # the definition asks for no image; a pod does
    name=_LABEL,
    image=_STRING,
    command=_list(_STRING),
    ports=_list(_object("containerPort", containerPort=_INTEGER)),
    env=_list(_ENV),
    resources=_object(limits={"type": "object", "values": _QUANTITY}),
    volumeMounts=_list(_object("name mountPath", name=_STRING, mountPath=_STRING)),
)
_VOLUME = _object(
    "name",
    name=_LABEL,
    persistentVolumeClaim=_object("claimName", claimName=_STRING),
    emptyDir=_object(medium=_one_of("", "Memory"), sizeLimit=_QUANTITY),
)
_POD = _object(
    "containers",
    restartPolicy=_one_of("Never"),  # a Job with a pod failure policy has no other
    terminationGracePeriodSeconds=_INTEGER,
    containers=_list(_CONTAINER),
    volumes=_list(_VOLUME),
)
_POD_FAILURE = _object(
    "action",
    action=_one_of("FailJob", "FailIndex", "Ignore", "Count"),
    onExitCodes=_object(
        "operator values",
        containerName=_STRING,
        operator=_one_of("In", "NotIn"),
        values=_list(_INTEGER),
    ),
)
_JOB = _object(
    "template",
    completionMode=_one_of("Indexed", "NonIndexed"),
    completions=_INTEGER,
    parallelism=_INTEGER,
    backoffLimit=_INTEGER,
    podFailurePolicy=_object("rules", rules=_list(_POD_FAILURE)),
    template=_object("spec", spec=_POD),
)
_ACTIONS = ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob",
            "RestartJobAndIgnoreMaxRestarts")  # fmt: skip
JOBSET = _object(
    "apiVersion kind metadata spec",
    apiVersion=_one_of("jobset.x-k8s.io/v1alpha2"),
    kind=_one_of("JobSet"),
    metadata=_object("name", name=_LABEL),
    spec=_object(
        "replicatedJobs",
        network=_object(
            enableDNSHostnames=_BOOLEAN, subdomain=_LABEL, publishNotReadyAddresses=_BOOLEAN
        ),
        failurePolicy=_object(
            maxRestarts=_INTEGER,
            restartStrategy=_one_of("Recreate", "BlockingRecreate", "InPlaceRestart"),
            rules=_list(
                _object(
                    "name action",
                    name={"type": "string", "pattern": r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"},
                    action=_one_of(*_ACTIONS),
                    onJobFailureReasons=_list(
                        _one_of(
                            "BackoffLimitExceeded",
                            "DeadlineExceeded",
                            "FailedIndexes",
                            "MaxFailedIndexesExceeded",
                            "PodFailurePolicy",
                        )
                    ),
                )
            ),
        ),
        replicatedJobs=_list(
            _object(
                "name template",
                name=_LABEL,
                replicas=_INTEGER,
                template=_object("spec", spec=_JOB),
            )
        ),
    ),
)
SKYPILOT = _object(
    name=_STRING,
    num_nodes=_INTEGER,
    workdir=_STRING,
    resources=_object(
        accelerators={"type": "string", "pattern": r"[A-Za-z0-9._-]+:[0-9]+"},
        image_id={"type": "string", "pattern": r"docker:.+"},
        job_recovery=_object(strategy=_STRING, max_restarts_on_errors=_INTEGER),
    ),
    envs={"type": "object", "values": _STRING, "keys": r"[a-zA-Z_][a-zA-Z0-9_]*"},
    volumes={"type": "object", "values": _STRING, "keys": r"/.+"},
    setup=_STRING,
    run=_STRING,
)

_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


def problems(value: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    """Return what does not fit, each with its path; an unknown field does not fit."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if type(value) not in [_TYPES[kind] for kind in kinds]:
        return [f"{path}: {value!r} is not {' or '.join(kinds)}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} is none of {schema['enum']}")
    if "pattern" in schema and not re.fullmatch(schema["pattern"], str(value)):
        found.append(f"{path}: {value!r} does not match {schema['pattern']}")
    if isinstance(value, dict):
        found += _problems_of_object(value, schema, path)
    if isinstance(value, list):
        for index, item in enumerate(value):
            found += problems(item, schema["items"], f"{path}.{index}")
    return found


def _problems_of_object(value: dict[str, Any], schema: dict[str, Any], path: str) -> list[str]:
    fields = schema.get("properties", {})
    found = [f"{path}.{name}: missing" for name in schema.get("required", []) if name not in value]
    for name, item in value.items():
        if name in fields:
            found += problems(item, fields[name], f"{path}.{name}")
        elif "values" in schema and re.fullmatch(schema.get("keys", r".+"), name):
            found += problems(item, schema["values"], f"{path}.{name}")
        else:
            found.append(f"{path}.{name}: unknown")
    return found
