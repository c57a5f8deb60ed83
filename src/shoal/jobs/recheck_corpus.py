"""Rechecks of a corpus: digests, files, how its artifacts name each other, and `corpus.json`.

A digest stands for what went into an artifact, a SHA-256 for a file that came out. The counts that
tie the two together are made anew by `recheck_tables`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.artifact import Artifact, load, reference
from shoal.core.files import sha256_file
from shoal.data.manifest import CORPUS
from shoal.jobs.findings import Check, Findings
from shoal.jobs.recheck_run import read_object
from shoal.jobs.recheck_tables import recheck_tables

SUMS = (
    "documents", "bytes", "rejected", "empty", "duplicates", "near_duplicates",
    "near_duplicate_bytes", "heldout_documents", "heldout_bytes", "overlap_dropped",
    "contaminated_documents", "contaminated_dropped", "contaminated_characters",
    "training_documents", "training_bytes", "tokens",
)  # fmt: skip
_LEDGER = ("documents", "duplicates", "near_duplicates", "contaminated_dropped")


def recheck_corpus(path: Path, findings: Findings) -> None:
    """Recheck a finished corpus: the folder that holds its `corpus.json`."""
    artifacts: dict[str, Artifact] = {}
    with findings.check("artifacts", path.name) as check:
        artifacts = _artifacts(path, check)
    whole = artifacts.get(path.name)
    content: dict[str, Any] = {}
    with findings.check("corpus.json read", f"{path.name}/{CORPUS}") as check:
        content = read_object(path / CORPUS)
        check.says = f"{len(content['sources'])} sources, {len(content['stages'])} stages"
    if whole is None or not content:
        findings.skip("counts", "the corpus itself is damaged, as said above", where=path.name)
        return
    for ref in _absent(path, content):
        findings.skip("artifact", "its folder is not there", where=ref)
    stages = {
        artifact.manifest["stage"]: artifact
        for artifact in artifacts.values()
        if artifact.manifest["stage"] != "source"
    }
    with findings.check("inputs", path.name) as check:
        _inputs(whole, artifacts, check)
    with findings.check("corpus.json", f"{path.name}/{CORPUS}") as check:
        _named(whole, content, check)
        _told(content, artifacts, check)
    _cards(content, artifacts, findings)
    with findings.check("provenance sums", f"{path.name}/{CORPUS}") as check:
        _sums(content, stages, check)
    recheck_tables(content, artifacts, findings)


def _artifacts(path: Path, check: Check) -> dict[str, Artifact]:
    """Reference -> artifact, of those that are sound; the others fail by name."""
    refs = [path.name, *(one["ref"] for one in read_object(path / CORPUS)["stages"])]
    found: dict[str, Artifact] = {}
    num_files = num_bytes = 0
    for ref in refs:
        folder = path.parent / ref
        if not folder.is_dir():
            continue
        try:
            artifact = load(folder)
        except ValueError as error:
            check.fails(str(error), where=f"{ref}/manifest.json")
            continue
        named = reference(artifact.name, artifact.digest)
        spelled = "folder and the digest that its manifest comes to"
        if not check.equal(spelled, ref, named, where=f"{ref}/manifest.json"):
            continue
        for name, entry in artifact.manifest["files"].items():
            digest = sha256_file(folder / name)
            check.equal("SHA-256 of a file", entry["sha256"], digest, where=f"{ref}/{name}")
            num_files, num_bytes = num_files + 1, num_bytes + entry["bytes"]
        extra = _files(folder) - set(artifact.manifest["files"]) - {"manifest.json"}
        for name in sorted(extra):
            check.fails("a file that its manifest does not list", where=f"{ref}/{name}")
        found[ref] = artifact
    check.says = (
        f"{len(found)} digests recomputed from their manifests, SHA-256 of {num_files} files"
        f" ({num_bytes / 1e6:,.1f} MB)"
    )
    return found


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def _absent(path: Path, content: Mapping[str, Any]) -> list[str]:
    refs = [one["ref"] for one in content["stages"]]
    return [ref for ref in refs if not (path.parent / ref).is_dir()]


def _inputs(whole: Artifact, artifacts: Mapping[str, Artifact], check: Check) -> None:
    """Every artifact must have been made of the others as they are."""
    digests = {name.removeprefix("source "): one for name, one in whole.manifest["inputs"].items()}
    num_links = 0
    for ref, artifact in artifacts.items():
        stage = artifact.manifest["stage"]
        role = artifact.name.removeprefix("source-") if stage == "source" else stage
        if ref != whole.ref:
            spelled = "its digest, as the corpus names it"
            check.equal(spelled, digests.get(role), artifact.digest, where=ref)
        for name, digest in artifact.manifest["inputs"].items():
            # What is no stage of this corpus (an archive, labels) has its digest elsewhere.
            if ref != whole.ref and stage != "source" and name in digests:
                spelled = f"digest of the {name} that it was made of"
                check.equal(spelled, digests[name], digest, where=f"{ref}/manifest.json")
                num_links += 1
    check.says = f"{num_links} inputs are the artifacts of this corpus"


def _told(content: Mapping[str, Any], artifacts: Mapping[str, Artifact], check: Check) -> None:
    """What `corpus.json` repeats must be what the artifacts say."""
    for one in content["stages"]:
        if (artifact := artifacts.get(one["ref"])) is not None:
            spelled = f"facts of stage {one['stage']}"
            check.equal(spelled, artifact.facts, one["facts"], where=one["ref"])
            stage = artifact.manifest["stage"]
            check.equal("name of the stage", stage, one["stage"], where=one["ref"])
    for stage in ("tokens", "tokenizer"):
        if not any(one["stage"] == stage for one in content["stages"]):
            check.fails(f"names no stage {stage}")
    size = sum(one["training_bytes"] for one in _trained(content))
    tokens = sum(one["tokens"] - one["training_documents"] for one in _trained(content))
    measured = round(size / max(tokens, 1), 4)
    check.equal("bytes per token", measured, content["tokenizer"]["bytes_per_token"])
    facts = {one["stage"]: one["facts"] for one in content["stages"]}
    refs = {one["stage"]: one["ref"] for one in content["stages"]}
    cells = [{"name": name, **cell} for name, cell in facts["tokens"]["cells"].items()]
    check.equal("cells", cells, content["cells"])
    check.equal("unit_tokens", facts["tokens"]["unit_tokens"], content["unit_tokens"])
    check.equal("the tokenizer", refs["tokenizer"], content["tokenizer"]["ref"])
    size = facts["tokens"]["vocab_size"]
    check.equal("size of the vocabulary", size, content["tokenizer"]["vocab_size"])
    check.says = f"facts of {len(content['stages'])} stages and {len(cells)} cells repeated rightly"


def _trained(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in content["sources"] if one["usage"] == "training"]


def _named(whole: Artifact, content: Mapping[str, Any], check: Check) -> None:
    """The stages that are listed must be those that the corpus' own digest was made of."""
    listed = {one["ref"].rpartition("@")[2] for one in content["stages"]}
    inputs = {reference("", digest)[1:]: name for name, digest in whole.manifest["inputs"].items()}
    for one in content["stages"]:
        if one["ref"].rpartition("@")[2] not in inputs:
            check.fails("a stage that the corpus was not made of", where=one["ref"])
    for digest in inputs.keys() - listed:
        check.fails(f"does not list its stage {inputs[digest]}, {digest}")
    refs = [one["ref"] for one in content["stages"]]
    check.equal("refs in its manifest", refs, whole.facts.get("refs"), where=whole.ref)


def _cards(
    content: Mapping[str, Any], artifacts: Mapping[str, Artifact], findings: Findings
) -> None:
    """What a source's card says that its artifact knows; the rest is the recipe's word."""
    with findings.check("source cards", f"{CORPUS} sources") as check:
        made = {a.name: a for a in artifacts.values() if a.manifest["stage"] == "source"}
        number = 0
        for one in content["sources"]:
            if (artifact := made.get(f"source-{one['name']}")) is None:
                continue
            number, where = number + 1, f"{CORPUS}, source {one['name']}"
            for key in ("retrieved", "revision"):
                if key in one and key in artifact.facts:
                    check.equal(f"its {key}", artifact.facts[key], one[key], where=where)
            archive = artifact.manifest["inputs"].get("archive")
            if one.get("sha256") and archive is not None:
                check.equal("SHA-256 of its archive", archive, one["sha256"], where=where)
        if not number:
            check.cannot("the sources' artifacts are not there")
        check.says = f"revision, date and archive of {number} sources are their artifacts'"
    findings.skip(
        "origins and licenses",
        "they are the recipe's word; nothing here can show them",
        where=f"{CORPUS} sources",
    )


def _sums(content: Mapping[str, Any], stages: Mapping[str, Artifact], check: Check) -> None:
    """Counts of sources, from the stages' facts; documents in = out + removed."""
    facts = {stage: artifact.facts for stage, artifact in stages.items()}
    total = 0
    for one in content["sources"]:
        name, where = one["name"], f"{CORPUS}, source {one['name']}"
        if one["usage"] == "blocked":
            continue
        counted = _counts(name, facts)
        for key in SUMS:
            check.equal(f"{key}, by the stages", counted[key], one[key], where=where)
        if one["usage"] == "training":
            held = facts["heldout"]["sources"][name]["candidates"]
            gone = held + sum(one[key] for key in _LEDGER[1:])
            spelled = "documents = trained on + copies + held out + dropped"
            check.equal(spelled, one["documents"], one["training_documents"] + gone, where=where)
            total += one["training_documents"]
    check.says = f"{len(content['sources'])} sources, {total:,} training documents add up"


def _counts(name: str, facts: Mapping[str, Any]) -> dict[str, int]:
    def of(stage: str) -> Any:
        return facts[stage]["sources"].get(name, {})

    documents, near, held = of("documents"), of("near"), of("heldout")
    cut, trained = of("contamination"), of("tokens")
    return {
        "documents": documents["documents"],
        "bytes": documents["bytes"],
        "rejected": documents["rejected"],
        "empty": documents["empty"],
        "duplicates": of("duplicates"),
        "near_duplicates": near.get("removed", 0),
        "near_duplicate_bytes": near.get("removed_bytes", 0),
        "heldout_documents": held["kept"],
        "heldout_bytes": held["kept_bytes"],
        "overlap_dropped": held["overlap_dropped"],
        "contaminated_documents": cut.get("contaminated", 0),
        "contaminated_dropped": cut.get("dropped", 0),
        "contaminated_characters": cut.get("characters", 0),
        "training_documents": trained.get("documents", 0),
        "training_bytes": trained.get("bytes", 0),
        "tokens": trained.get("tokens", 0),
    }
