"""The verbs: what each takes, the job that it calls when it runs, and how its result reads.

A job is imported when it is called, so that `--help`, `show` and `count` stay instant.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.cli import arguments, results
from shoal.cli.results import Result

type Arguments = argparse.Namespace


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb: its help, what it takes, the job it calls and how its result reads."""

    summary: str
    example: str
    takes: tuple[Callable[[argparse.ArgumentParser], None], ...]
    call: Callable[[Arguments], Result]
    show: Callable[[Result], str]


def _call_quickstart(given: Arguments) -> Result:
    from shoal.jobs.quickstart import quickstart

    return quickstart(text=given.text, overrides=given.overrides, json=given.json)


def _call_show(given: Arguments) -> Result:
    from shoal.jobs.show import show

    return show(given.recipe, given.overrides)


def _call_count(given: Arguments) -> Result:
    from shoal.jobs.count import count

    return count(given.recipe, given.overrides)


def _call_doctor(_: Arguments) -> Result:
    from shoal.jobs.doctor import doctor

    return doctor()


def _call_prepare(given: Arguments) -> Result:
    from shoal.jobs.prepare import prepare_recipe

    return prepare_recipe(
        given.recipe,
        given.overrides,
        engine=given.engine,
        permissive_only=given.permissive_only,
        as_found=given.as_found,
    )


def _call_audit(given: Arguments) -> Result:
    if given.planted == bool(given.corpus):
        raise ValueError("say which corpus, or --planted: one of both")
    if given.planted:
        from shoal.jobs.planted import planted

        return planted()
    from shoal.jobs.audit import audit

    return audit(given.corpus, given.out)


def _call_explain(given: Arguments) -> Result:
    from shoal.jobs.explain import explain

    return explain(given.corpus, given.document)


def _call_label(given: Arguments) -> Result:
    from shoal.jobs.label import label_corpus

    return label_corpus(
        given.corpus,
        endpoint=given.endpoint,
        model=given.model,
        count=given.count,
        form=given.form,
        gguf=given.gguf,
        out=given.out,
    )


def _call_contamination(given: Arguments) -> Result:
    from shoal.jobs.contamination import contamination

    return contamination(given.corpus, given.evaluations)


def _call_mix(given: Arguments) -> Result:
    from shoal.jobs.mix import mix

    return mix(
        given.recipe,
        given.overrides,
        proxy_recipe=given.proxy,
        proxies=given.proxies,
        groups=given.groups,
        seeds=given.seeds,
        max_divergence=given.max_divergence,
        out=given.out,
    )


def _call_ladder(given: Arguments) -> Result:
    from shoal.jobs.ladder import ladder

    return ladder(
        given.recipe,
        given.overrides,
        rungs=given.rungs,
        runs=given.runs,
        dry_run=given.dry_run,
    )


def _call_train(given: Arguments) -> Result:
    from shoal.jobs.train import train

    return train(
        given.recipe,
        given.overrides,
        given.run,
        given.change,
        coordinator=given.coordinator,
        num_processes=given.num_processes,
        process_id=given.process_id,
        **_given(given, "forecast"),
    )


def _call_plan(given: Arguments) -> Result:
    from shoal.jobs.plan import plan

    named = ("step_s", "mfu", "deadline", "start", "lost", "at_step")
    costs = ("failures_per_chip_year", "restart_minutes", "price", "power")
    return plan(
        given.recipe,
        given.overrides,
        chips=given.chips,
        chip=given.chip,
        mesh=given.mesh,
        search=given.search,
        **_given(given, "compile", *named, *costs),
    )


def _call_launch(given: Arguments) -> Result:
    from shoal.jobs.launch import launch

    options = ("time", "partition", "account", "image", "gpu", "home", "forecast", "restarts")
    return launch(
        given.cluster,
        given.recipe,
        given.overrides,
        nodes=given.nodes,
        gpus_per_node=given.gpus_per_node,
        run=given.run,
        name=given.name,
        out=given.out,
        **_given(given, *options),
    )


def _given(given: Arguments, *names: str) -> dict[str, Any]:
    """Return the flags that were given: a job's own defaults hold for the others."""
    values = {name: getattr(given, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _call_cutover(given: Arguments) -> Result:
    from shoal.jobs.cutover import cutover

    return cutover(given.run, given.overrides, **_given(given, "steps", "step"))


def _call_probe(given: Arguments) -> Result:
    from shoal.jobs.probe import probe

    return probe(given.run, given.overrides, **_given(given, "steps", "step"))


def _call_eval(given: Arguments) -> Result:
    from shoal.jobs.evaluate import evaluate_run

    return evaluate_run(given.run, given.step)


def _call_forecast(given: Arguments) -> Result:
    if given.list == bool(given.ladder):
        raise ValueError("say which ladder, or --list: one of both")
    if given.list:
        from shoal.jobs.outcomes import outcomes

        return outcomes()
    from shoal.jobs.forecast import forecast_ladder

    return forecast_ladder(given.ladder, given.asymptote)


def _call_seal(given: Arguments) -> Result:
    from shoal.jobs.seal import seal

    named = ("contamination", "timestamp", "authority", "sign", "signers")
    return seal(given.ladder, **_given(given, *named))


def _call_settle(given: Arguments) -> Result:
    from shoal.jobs.settle import settle

    extra = {"extra": given.without} if given.without else {}
    return settle(given.run, given.forecast, **_given(given, "contamination"), **extra)


def _call_compare(given: Arguments) -> Result:
    from shoal.jobs.compare import compare

    return compare(given.first, given.second, given.reference, given.asymptote)


def _call_verify(given: Arguments) -> Result:
    from shoal.jobs.verify import verify

    return verify(given.target, **_given(given, "steps"))


def _call_report(given: Arguments) -> Result:
    from shoal.jobs.report import report

    return report(given.name)


def _call_generate(given: Arguments) -> Result:
    from shoal.jobs.generate import generate

    return generate(given.run, given.prompt, given.tokens, given.temperature, given.seed)


def _call_hash(given: Arguments) -> Result:
    from shoal.jobs.hash import hash_run

    return hash_run(given.run)


VERBS = {
    "quickstart": Verb(
        summary="from raw text to a trained, evaluated and reported model",
        example="shoal quickstart --text my-notes/",
        takes=(arguments.text, arguments.overrides),
        call=_call_quickstart,
        show=results.as_nothing,
    ),
    "show": Verb(
        summary="print a recipe's whole config and what follows from it",
        example="shoal show d512 --set train.seed=1",
        takes=(arguments.recipe, arguments.overrides),
        call=_call_show,
        show=results.as_config,
    ),
    "count": Verb(
        summary="count a recipe's parameters and FLOPs, allocating nothing",
        example="shoal count flagship --json",
        takes=(arguments.recipe, arguments.overrides),
        call=_call_count,
        show=results.as_counts,
    ),
    "plan": Verb(
        summary="work out what a recipe needs and takes on given chips, before anything runs",
        example="shoal plan flagship --chips 704 --chip gb200 --mfu 24.5%",
        takes=(arguments.recipe, arguments.chips, arguments.pace, arguments.overrides),
        call=_call_plan,
        show=results.as_plan,
    ),
    "launch": Verb(
        summary="write the file that a cluster is given to train a recipe on many machines",
        example="shoal launch slurm d512 --nodes 8 --gpus-per-node 8 --out d512.sbatch",
        takes=(arguments.cluster, arguments.recipe, arguments.job, arguments.overrides),
        call=_call_launch,
        show=results.as_launch,
    ),
    "doctor": Verb(
        summary="look at this machine and say what is missing",
        example="shoal doctor",
        takes=(),
        call=_call_doctor,
        show=results.as_checkup,
    ),
    "prepare": Verb(
        summary="make the corpus that a recipe trains on",
        example="shoal prepare quickstart",
        takes=(arguments.recipe, arguments.corpus_options, arguments.overrides),
        call=_call_prepare,
        show=results.as_corpus,
    ),
    "audit": Verb(
        summary="account for every document of a corpus, with sources and licenses",
        example="shoal audit quickstart",
        takes=(arguments.audited,),
        call=_call_audit,
        show=results.as_audit,
    ),
    "explain": Verb(
        summary="say everything about one document, and why it is in or out",
        example="shoal explain quickstart owt/12",
        takes=(arguments.corpus, arguments.document),
        call=_call_explain,
        show=results.as_explanation,
    ),
    "label": Verb(
        summary="have a judge rate a sample of a corpus, for the quality of all of it",
        example="shoal label quickstart --endpoint http://127.0.0.1:8000/v1 --model NAME",
        takes=(arguments.corpus, arguments.judge),
        call=_call_label,
        show=results.as_lines,
    ),
    "contamination": Verb(
        summary="say how much of every evaluation item stands in a corpus' training text",
        example="shoal contamination quickstart items.jsonl",
        takes=(arguments.corpus, arguments.evaluations),
        call=_call_contamination,
        show=results.as_contamination,
    ),
    "mix": Verb(
        summary="find a recipe's mixture with small runs that differ in what they read",
        example="shoal mix quickstart --proxies 36",
        takes=(arguments.recipe, arguments.proxies, arguments.overrides),
        call=_call_mix,
        show=results.as_mixture,
    ),
    "ladder": Verb(
        summary="train the small runs that a large one is forecast from, or plan them",
        example="shoal ladder flagship --dry-run",
        takes=(arguments.recipe, arguments.rungs, arguments.overrides),
        call=_call_ladder,
        show=results.as_ladder,
    ),
    "train": Verb(
        summary="train a recipe, or go on from its newest checkpoint",
        example="shoal train quickstart --run second --set train.seed=1",
        takes=(arguments.recipe, arguments.train, arguments.overrides, arguments.process),
        call=_call_train,
        show=results.as_lines,
    ),
    "eval": Verb(
        summary="score a run's checkpoint on its held-out text",
        example="shoal eval quickstart",
        takes=(arguments.run, arguments.step),
        call=_call_eval,
        show=results.as_scores,
    ),
    "cutover": Verb(
        summary="replay a run's batches under other numeric settings: go or no-go",
        example="shoal cutover quickstart --set moe.transport=ragged --steps 50",
        takes=(arguments.run, arguments.overrides, arguments.steps, arguments.step),
        call=_call_cutover,
        show=results.as_verdict,
    ),
    "probe": Verb(
        summary="compare raw gradients of two settings on a run's batches, updating nothing",
        example="shoal probe quickstart --set moe.transport=ragged",
        takes=(arguments.run, arguments.overrides, arguments.steps, arguments.step),
        call=_call_probe,
        show=results.as_gradients,
    ),
    "forecast": Verb(
        summary="say where a ladder's target will end, and how surely",
        example="shoal forecast public-535b --json",
        takes=(arguments.ladder_or_list, arguments.asymptote),
        call=_call_forecast,
        show=results.as_forecast,
    ),
    "seal": Verb(
        summary="fix a forecast by one hash before its run begins, or check a seal",
        example="shoal seal cpu-ladder",
        takes=(arguments.ladder, arguments.seal, arguments.contaminated),
        call=_call_seal,
        show=results.as_seal,
    ),
    "settle": Verb(
        summary="score a forecast by the run that it was about",
        example="shoal settle cpu-target",
        takes=(arguments.run, arguments.settle, arguments.contaminated),
        call=_call_settle,
        show=results.as_settlement,
    ),
    "compare": Verb(
        summary="say what one ladder or run saves against another: compute, and time",
        example="shoal compare base changed",
        takes=(arguments.compared, arguments.asymptote),
        call=_call_compare,
        show=results.as_comparison,
    ),
    "verify": Verb(
        summary="recompute a run, a forecast or a corpus from its own files, trusting nothing",
        example="shoal verify quickstart --steps 8",
        takes=(arguments.verified,),
        call=_call_verify,
        show=results.as_findings,
    ),
    "report": Verb(
        summary="write the report.html of a run or a forecast anew from its record",
        example="shoal report quickstart",
        takes=(arguments.reported,),
        call=_call_report,
        show=results.as_lines,
    ),
    "generate": Verb(
        summary="write text with a run's newest checkpoint",
        example="shoal generate quickstart --prompt 'To be' --tokens 64",
        takes=(arguments.run, arguments.prompt),
        call=_call_generate,
        show=results.as_text,
    ),
    "hash": Verb(
        summary="print one digest of a run's newest complete state",
        example="shoal hash quickstart",
        takes=(arguments.run,),
        call=_call_hash,
        show=results.as_lines,
    ),
}
