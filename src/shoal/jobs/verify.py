"""Job `verify`: a run, a forecast or a corpus recomputed from its own files, line by line.

Every check holds, fails (what, where, expected, found) or could not be made (why). Nothing that is
verified is written to, and nothing is taken on trust that can be computed.
"""

import os
from pathlib import Path
from typing import Any

from shoal.core.files import home
from shoal.core.progress import progress_for
from shoal.data.manifest import CORPUS
from shoal.jobs.findings import FAILS, Findings, spelled
from shoal.jobs.forecast import FORECAST, FORECASTS, LADDER
from shoal.jobs.runs import RUN, run_folder

STEPS = 4


def verify(target: str, steps: int = STEPS) -> dict[str, Any]:
    """Verify a run, a forecast or a corpus.

    Args:
        target: a name under SHOAL_HOME or a path; of a name that several have, the run comes
            first, then the forecast, then the corpus, whose NAME@HASH12 nothing else has.
        steps: how many steps of a run are computed anew; 0 is none.

    Returns:
        `target kind path ok counts lines also`; `also` names what else has this name.

    Raises:
        ValueError: there is nothing of this name.
    """
    if steps < 0:
        raise ValueError(f"--steps {steps}: use 0 or more")
    found = find(target)
    (kind, path), findings = found[0], Findings()
    if kind == "run":
        _verify_run(path, steps, findings)
    elif kind == "forecast":
        from shoal.jobs.recheck_forecast import recheck_forecast

        recheck_forecast(path, findings)
    else:
        from shoal.jobs.recheck_corpus import recheck_corpus

        recheck_corpus(path.resolve(), findings)
    counts = findings.counts()
    return {
        "target": target,
        "kind": kind,
        "path": str(path),
        "ok": not counts[FAILS],
        "counts": counts,
        "lines": findings.lines,
        "also": [f"{kind} {path}" for kind, path in found[1:]],
    }


def find(target: str) -> list[tuple[str, Path]]:
    """What has this name or path: kind and folder.

    Raises:
        ValueError: nothing has.
    """
    given, found = Path(target), list[tuple[str, Path]]()
    folder = given.parent if given.is_file() else given
    named = os.sep not in target and target not in (".", "..")
    run = run_folder(target) if named else folder
    if (run / RUN).is_file():
        found.append(("run", run))
    for path in (home() / FORECASTS / target, folder) if named else (folder,):
        if (
            any((path / name).is_file() for name in (LADDER, FORECAST))
            and ("forecast", path) not in found
        ):
            found.append(("forecast", path))
    root = home() / "corpora"
    pattern = target if "@" in target else f"{target}@*"
    corpora = root.glob(f"{pattern}/{CORPUS}") if named else []
    found += [("corpus", path.parent) for path in sorted(corpora, key=_changed, reverse=True)]
    if not found and (folder / CORPUS).is_file():
        found.append(("corpus", folder))
    if not found:
        raise ValueError(
            f"there is no run, forecast or corpus {target!r} under {home()}; give a name from"
            " `runs`, `forecasts` or `corpora` there, or a path"
        )
    return found


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def _verify_run(folder: Path, steps: int, findings: Findings) -> None:
    from shoal.jobs import recheck_run, recheck_state
    from shoal.jobs.runtime import start_jax

    config = recheck_run.recheck_config(folder, findings)
    recheck_run.recheck_chain(folder, findings)
    if config is None:
        findings.skip("the rest of the run", "its config cannot be read", where=RUN)
        return
    recheck_run.recheck_seal(folder, config, findings)
    recheck_run.recheck_metrics(folder, config, findings)
    recheck_run.recheck_evaluations(folder, config, findings)
    start_jax(home())
    progress = progress_for()
    recheck_state.recheck_checkpoints(folder, config, progress, findings)
    corpus = recheck_state.corpus_of(folder, findings)
    if corpus is None:
        findings.skip("order of the data, evaluated text, replay", "they need the corpus")
        return
    recheck_state.recheck_scored(folder, config, corpus, findings)
    recheck_state.recheck_order(config, corpus, findings)
    if steps:
        recheck_state.recheck_replay(folder, config, corpus, steps, progress, findings)
    else:
        findings.skip("replay", "--steps 0")


def render(result: dict[str, Any]) -> str:
    """Return the lines and the verdict for a terminal."""
    counts = result["counts"]
    verdict = "VERIFIED" if result["ok"] else "NOT VERIFIED"
    summary = ", ".join(f"{number} {state}" for state, number in counts.items())
    lines = [f"{result['kind']} {result['path']}", ""]
    lines += [spelled(line) for line in result["lines"]]
    lines += ["", f"{verdict}: {summary}"]
    lines += [f"of the same name: {other}" for other in result["also"]]
    return "\n".join(lines)
