"""Who vouches for a seal: an RFC 3161 timestamp (openssl) and an SSH signature (ssh-keygen).

Beside `seal.json`: `seal.tsr`, an authority's word that it saw the seal's hash at a time, and
`seal.json.sig`, a signature of the file. Both are made and checked by programs that a stranger has:

    openssl ts -verify -digest SHA256 -in seal.tsr -CAfile AUTHORITY.pem
    ssh-keygen -Y verify -f SIGNERS -I WHO -n shoal-seal -s seal.json.sig < seal.json
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import httpx2

from shoal.core.files import write_atomic

TIMESTAMP, SIGNATURE = "seal.tsr", "seal.json.sig"
NAMESPACE = "shoal-seal"
_TIMEOUT_S = 60.0
_LIMIT_BYTES = 2**20
_DUMP = re.compile(r"^ +[0-9a-f]{4} - ((?:[0-9a-f]{2}[ -])+)", re.MULTILINE)


def timestamp(folder: Path, sha256: str, url: str) -> Path:
    """Have an authority sign a seal's hash; the reply is kept as `seal.tsr`.

    Args:
        folder: of the seal.
        sha256: the seal's; 64 hex digits.
        url: of the authority.

    Raises:
        ValueError: openssl is missing, the authority does not answer, refuses, or signs another
            hash.
    """
    with tempfile.TemporaryDirectory() as scratch:
        query, reply = Path(scratch) / "query", Path(scratch) / "reply"
        words = ("-query", "-digest", sha256, "-sha256", "-cert", "-out", str(query))
        _run(("openssl", "ts", *words), "asking for a timestamp")
        reply.write_bytes(_posted(url, query.read_bytes()))
        _reply(reply, sha256)
        write_atomic(folder / TIMESTAMP, reply.read_bytes())
    return folder / TIMESTAMP


def check_timestamp(folder: Path, sha256: str, authority: Path | None) -> dict[str, Any]:
    """What the timestamp beside a seal says.

    Args:
        folder: of the seal.
        sha256: the seal's.
        authority: certificates to trust (PEM); None: the authority's own signature is not checked.

    Returns:
        `time`, as openssl spells it, and `trusted`, whether the signature was checked.

    Raises:
        ValueError: it is missing, for another hash, or not signed by the authority.
    """
    path = folder / TIMESTAMP
    if not path.is_file():
        raise ValueError(f"{path} is missing; `shoal seal --timestamp URL` makes one")
    found = _reply(path, sha256)
    if authority is not None:
        words = ("-verify", "-digest", sha256, "-in", str(path), "-CAfile", str(authority))
        _run(("openssl", "ts", *words), f"checking {path} against {authority}")
    return {"time": found, "trusted": authority is not None}


def _posted(url: str, query: bytes) -> bytes:
    try:
        with httpx2.Client(timeout=_TIMEOUT_S, follow_redirects=True) as client:
            answer = client.post(
                url, content=query, headers={"Content-Type": "application/timestamp-query"}
            )
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ValueError(f"timestamp authority {url} does not answer: {error}") from error
    if answer.status_code != httpx2.codes.OK or len(answer.content) > _LIMIT_BYTES:
        raise ValueError(
            f"timestamp authority {url} answers with status {answer.status_code} and"
            f" {len(answer.content)} bytes; is this the address for RFC 3161 queries?"
        )
    return answer.content


def _reply(path: Path, sha256: str) -> str:
    """The time in a reply that is for a hash."""
    said = _run(("openssl", "ts", "-reply", "-in", str(path), "-text"), f"reading {path.name}")
    if "Status: Granted" not in said:
        raise ValueError(f"the timestamp authority refused: {' '.join(said.split())[:200]}")
    dump = said.partition("Message data:")[2].partition("Serial number:")[0]
    seen = "".join(re.findall("[0-9a-f]{2}", " ".join(_DUMP.findall(dump))))
    if seen != sha256:
        raise ValueError(
            f"timestamp {path} is for hash {seen[:12] or 'none'}, and the seal's is {sha256[:12]}"
        )
    time = re.search(r"^Time stamp: (.+)$", said, re.MULTILINE)
    return time[1].strip() if time else "unknown"


def sign(path: Path, key: Path) -> Path:
    """Sign a seal with an SSH key; the signature is kept as `seal.json.sig`.

    Raises:
        ValueError: ssh-keygen is missing, or cannot sign with this key.
    """
    if not key.is_file():
        raise ValueError(f"no SSH key {key}; `ssh-keygen -t ed25519 -f {key}` makes one")
    words = ("ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE)
    found = _run(words, f"signing {path} with {key}", path.read_bytes())
    write_atomic(path.with_name(SIGNATURE), found + "\n")
    return path.with_name(SIGNATURE)


def check_signature(path: Path, signers: Path | None) -> dict[str, Any]:
    """What the signature beside a seal says.

    Args:
        path: of the seal.
        signers: who is trusted, as ssh-keygen's allowed signers; None: anybody's key will do.

    Returns:
        `key`, as ssh-keygen spells it, `who` signed, None where nobody was named, and `trusted`.

    Raises:
        ValueError: it is missing, not of this file, or of nobody who is trusted.
    """
    signature = path.with_name(SIGNATURE)
    if not signature.is_file():
        raise ValueError(f"{signature} is missing; `shoal seal --sign KEY` makes one")
    content, who = path.read_bytes(), None
    base = ("ssh-keygen", "-Y")
    if signers is None:
        words = ("check-novalidate", "-n", NAMESPACE, "-s", str(signature))
    else:
        find = ("find-principals", "-f", str(signers), "-s", str(signature))
        who = _run((*base, *find), f"{signature}: looking for its signer in {signers}").split("\n")[
            0
        ]
        words = ("verify", "-f", str(signers), "-I", who, "-n", NAMESPACE, "-s", str(signature))
    said = _run((*base, *words), f"checking {signature}", content)
    key = re.search(r"with (\S+ key \S+)", said)
    return {"key": key[1] if key else said, "who": who, "trusted": signers is not None}


def _run(words: tuple[str, ...], what: str, given: bytes = b"") -> str:
    try:
        done = subprocess.run(
            words, input=given, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise ValueError(f"{what} needs the program {words[0]}; install it") from error
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"{what}: {words[0]} did not end; does it ask for a passphrase?"
        ) from error
    said = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        told = f"{said} {done.stderr.decode(errors='replace').strip()}".strip()
        raise ValueError(f"{what} failed: {told[-300:]}")
    return said
