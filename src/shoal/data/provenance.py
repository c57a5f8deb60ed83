"""The provenance table of a corpus, as CSV and as Croissant JSON-LD.

Both are made from the content of `corpus.json` alone (`data.manifest`): one row per source, blocked
ones included. `card` gives the fields that a source's card adds there. Croissant 1.0 describes the
files that sources are read from (with their SHA-256) and the table itself, whose rows it carries.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.core.progress import Progress
from shoal.data.config import CorpusConfig, Source
from shoal.data.licenses import is_free, license_class

COLUMNS = (
    "name",
    "kind",
    "usage",
    "usage_reason",
    "origin",
    "license",
    "license_class",
    "license_given",
    "license_evidence",
    "synthetic",
    "generator",
    "machine_translated",
    "from_pdf",
    "personal_data",
    "form",
    "package",
    "version",
    "filename",
    "sha256",
    "revision",
    "retrieved",
    "documents",
    "bytes",
    "rejected",
    "empty",
    "duplicates",
    "heldout_documents",
    "heldout_bytes",
    "training_documents",
    "training_bytes",
    "tokens",
)
NUMBERS = frozenset(COLUMNS[COLUMNS.index("documents") :])
FLAGS = frozenset({"synthetic", "machine_translated", "from_pdf"})
CROISSANT = "http://mlcommons.org/croissant/1.0"
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
MEDIA_TYPES = {
    "wheel": "application/zip",
    "sdist": "application/gzip",
    "deb": "application/vnd.debian.binary-package",
}


def card(source: Source) -> dict[str, Any]:
    """What a source's card says, under the names of the provenance table."""
    archive = source.archive
    return {
        "name": source.name,
        "kind": source.kind,
        "usage": source.usage,
        "usage_reason": source.blocked_because,
        "origin": source.origin,
        "license": source.license,
        "license_class": license_class(source.license),
        "license_given": source.license_given,
        "license_evidence": source.license_evidence,
        "synthetic": bool(source.generator),
        "generator": source.generator,
        "machine_translated": source.machine_translated,
        "from_pdf": source.from_pdf,
        "personal_data": source.personal_data,
        "form": archive.form,
        "package": archive.package,
        "version": archive.version,
        "filename": archive.filename,
        "sha256": archive.sha256,
        "revision": archive.revision,
    }


def permissive_only(corpus: CorpusConfig, progress: Progress | None = None) -> CorpusConfig:
    """The corpus with every training source blocked whose license asks for more than attribution.

    Blocked sources stay in the table with that reason; evaluation text is not trained on and stays.

    Raises:
        ValueError: no training source is left.
    """
    sources = [_if_free(source) for source in corpus.sources]
    dropped = [s for s, before in zip(sources, corpus.sources, strict=True) if s is not before]
    if dropped and progress:
        named = ", ".join(f"{source.name} ({source.license})" for source in dropped)
        progress.note(f"permissive only: {len(dropped)} sources blocked: {named}")
    if not any(source.usage == "training" for source in sources):
        licenses = sorted({source.license for source in corpus.training})
        raise ValueError(
            f"corpus {corpus.name!r} has no permissive training source (licenses: "
            f"{', '.join(licenses)}); add one, or train without --permissive-only"
        )
    return replace(corpus, sources=tuple(sources))


def _if_free(source: Source) -> Source:
    if source.usage != "training" or is_free(source.license):
        return source
    reason = f"license {source.license} is {license_class(source.license)}, not permissive"
    return replace(source, usage="blocked", blocked_because=reason)


def provenance_csv(facts: Mapping[str, Any]) -> str:
    """One line per source under a header of `COLUMNS`; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(row.get(name)) for name in COLUMNS] for row in facts["sources"])
    return out.getvalue()


def croissant(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The corpus as a Croissant data set: its source files, and the provenance table as records."""
    reference = str(facts.get("corpus", "corpus"))
    name = reference.partition("@")[0]
    sources = facts["sources"]
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CROISSANT,
        "name": name,
        "description": (
            f"Provenance of the corpus {reference}: {len(sources)} sources, with origin, license, "
            "pinned revision and counts of each."
        ),
        "url": f"urn:shoal:corpus:{reference}",
        "version": "1.0.0",
        "citeAs": f"Shoal corpus {reference}",
        "license": sorted({row["license"] for row in sources if row["usage"] != "blocked"}),
        "datePublished": max((row.get("retrieved") or "" for row in sources), default=""),
        "isLiveDataset": False,
        "distribution": list(_files(sources)),
        "recordSet": [_table(sources)],
    }


def _files(sources: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    seen: dict[str, dict[str, Any]] = {}
    for row in sources:
        digest = row.get("sha256")
        if digest and digest not in seen:
            name = row.get("filename") or row.get("package") or row["name"]
            seen[digest] = {
                "@type": "cr:FileObject",
                "@id": f"file-{len(seen)}",
                "name": name,
                "description": row["origin"],
                "contentUrl": f"urn:sha256:{digest}",
                "encodingFormat": MEDIA_TYPES.get(str(row.get("form")), "text/plain"),
                "sha256": digest,
            }
    return list(seen.values())


def _table(sources: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": "sources",
        "name": "sources",
        "description": "One record per source; blocked sources are never read.",
        "key": {"@id": "sources/name"},
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"sources/{column}",
                "name": column,
                "description": column.replace("_", " "),
                "dataType": _data_type(column),
            }
            for column in COLUMNS
        ],
        "data": [
            {f"sources/{column}": _value(column, row.get(column)) for column in COLUMNS}
            for row in sources
        ],
    }


def _data_type(column: str) -> str:
    if column in NUMBERS:
        return "sc:Integer"
    return "sc:Boolean" if column in FLAGS else "sc:Text"


def _value(column: str, value: Any) -> Any:
    if column in NUMBERS:
        return int(value or 0)
    return bool(value) if column in FLAGS else str(value or "")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
