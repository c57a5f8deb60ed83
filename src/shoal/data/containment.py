"""Which members of a group are contained in another one: exact, in little memory.

A member is a sorted set of 64-bit hashes (distinct word n-grams) in one long array, which may be a
file mapped into memory. Members of a group are looked at in the order given, the one to keep first;
each is removed if one that was *kept* before it holds at least `share` of its set. Of several such
the one that holds most is its keeper, the earlier one if equal.

In a group up to `SCAN_LIMIT` members each is compared with every kept one. In a larger group an
index proposes the kept ones to compare with, and misses none: of n hashes at least m = share x n
must be in the keeper, so any n - m + 1 of them hold one that is. Those that are rarest in the group
are looked up; hashes that are nobody's rare ones, or stand in one member only, are not indexed. So
a template's boilerplate, which all members have, costs nothing where it is under the share, and
where it is above, few members are kept.
"""

from typing import Any, no_type_check

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from shoal.data.kernel import kernel

SCAN_LIMIT = 64
_LARGEST_TABLE = 2**26


def find_keepers(
    hashes: UInt64[np.ndarray, "hashes"],
    begins: Int64[np.ndarray, "members"],
    ends: Int64[np.ndarray, "members"],
    groups: Int64[np.ndarray, "groups_plus_one"],
    exempt: Bool[np.ndarray, "members"],
    share: float,
    *,
    scan_limit: int = SCAN_LIMIT,
) -> tuple[Int64[np.ndarray, "members"], Int64[np.ndarray, "members"]]:
    """Every member's keeper, and how many of its hashes that one holds; -1 and 0 if it is kept.

    Args:
        hashes: the sets of all members, each sorted and without repeats.
        begins: where in `hashes` each member's set begins.
        ends: and where it ends.
        groups: group g has members groups[g] to groups[g + 1].
        exempt: members that are kept whatever they hold.
        share: above 0, up to 1.
        scan_limit: groups of more members are searched by index; the result is the same.
    """
    keepers = np.full(len(begins), -1, np.int64)
    held = np.zeros(len(begins), np.int64)
    result = (exempt, share, keepers, held)
    _scan_groups(hashes, begins, ends, groups, scan_limit, *result)
    for group in np.flatnonzero(np.diff(groups) > scan_limit):
        first, last = int(groups[group]), int(groups[group + 1])
        total = int((ends[first:last] - begins[first:last]).sum())
        size = min(_LARGEST_TABLE, 1 << max(8, (2 * total).bit_length()))
        _search_group(hashes, begins, ends, first, last, size, *result)
    return keepers, held


@kernel
@no_type_check
def _needed(count: Any, share: Any) -> Any:
    """The smallest number that is at least the share of `count`; one at least."""
    number = np.int64(share * count)
    while number < share * count:
        number += 1
    return max(number, 1)


@kernel
@no_type_check
def _overlap(
    hashes: Any, begin: Any, end: Any, other_begin: Any, other_end: Any, least: Any
) -> Any:
    """How many hashes of one set are in the other, or -1 where that is surely below `least`."""
    found = 0
    j = other_begin
    for i in range(begin, end):
        if found + (end - i) < least:
            return -1
        value = hashes[i]
        step = 1
        # Strides that double, then halve: a long other set is crossed quickly.
        while j + step < other_end and hashes[j + step] < value:
            j += step
            step *= 2
        while step > 0:
            while j + step < other_end and hashes[j + step] < value:
                j += step
            step //= 2
        if j < other_end and hashes[j] < value:
            j += 1
        if j >= other_end:
            break
        if hashes[j] == value:
            found += 1
    return found if found >= least else -1


@kernel
@no_type_check
def _scan_groups(
    hashes: Any,
    begins: Any,
    ends: Any,
    groups: Any,
    scan_limit: Any,
    exempt: Any,
    share: Any,
    keepers: Any,
    held: Any,
) -> None:
    """Decides groups of up to `scan_limit` members, comparing with every kept one."""
    for group in range(len(groups) - 1):
        if groups[group + 1] - groups[group] > scan_limit:
            continue
        for member in range(groups[group], groups[group + 1]):
            if exempt[member] or begins[member] == ends[member]:
                continue
            least = _needed(ends[member] - begins[member], share)
            for other in range(groups[group], member):
                if keepers[other] >= 0:
                    continue
                count = _overlap(
                    hashes, begins[member], ends[member], begins[other], ends[other], least
                )
                if count >= 0:
                    keepers[member], held[member] = other, count
                    least = count + 1


@kernel
@no_type_check
def _rare(hashes: Any, begin: Any, end: Any, counts: Any, number: Any, chosen: Any) -> None:
    """Fills `chosen` with the places of the `number` hashes that are rarest by `counts`."""
    mask = np.uint64(len(counts) - 1)
    frequencies = np.empty(end - begin, np.int64)
    for i in range(begin, end):
        frequencies[i - begin] = counts[hashes[i] & mask]
    limit = np.sort(frequencies)[number - 1]
    found = 0
    for i in range(begin, end):
        if frequencies[i - begin] < limit:
            chosen[found] = i
            found += 1
    for i in range(begin, end):
        if found == number:
            break
        if frequencies[i - begin] == limit:
            chosen[found] = i
            found += 1


@kernel
@no_type_check
def _count(hashes: Any, begins: Any, ends: Any, first: Any, last: Any, counts: Any) -> Any:
    """In how many members each hash stands, or more where two share a place of the table."""
    mask = np.uint64(len(counts) - 1)
    longest = 1
    for member in range(first, last):
        longest = max(longest, ends[member] - begins[member])
        for i in range(begins[member], ends[member]):
            counts[hashes[i] & mask] += 1
    return longest


@kernel
@no_type_check
def _wanted(
    hashes: Any,
    begins: Any,
    ends: Any,
    first: Any,
    last: Any,
    exempt: Any,
    share: Any,
    counts: Any,
    chosen: Any,
) -> Any:
    """Marks the places of the table that some member's rare n-grams will be looked up at."""
    wanted = np.zeros(len(counts), np.uint8)
    mask = np.uint64(len(counts) - 1)
    for member in range(first, last):
        count = ends[member] - begins[member]
        if count and not exempt[member]:
            number = count - _needed(count, share) + 1
            _rare(hashes, begins[member], ends[member], counts, number, chosen)
            for n in range(number):
                wanted[hashes[chosen[n]] & mask] = 1
    return wanted


@kernel
@no_type_check
def _search_group(
    hashes: Any,
    begins: Any,
    ends: Any,
    first: Any,
    last: Any,
    size: Any,
    exempt: Any,
    share: Any,
    keepers: Any,
    held: Any,
) -> None:
    """Decides one large group with an index of what its kept members hold."""
    mask = np.uint64(size - 1)
    counts = np.zeros(size, np.uint32)
    longest = _count(hashes, begins, ends, first, last, counts)
    chosen = np.empty(longest, np.int64)
    wanted = _wanted(hashes, begins, ends, first, last, exempt, share, counts, chosen)
    # Chains of kept members, one for each place of the table.
    heads = np.full(size, -1, np.int64)
    members = np.empty(1024, np.int64)
    nexts = np.empty(1024, np.int64)
    used = 0
    seen = np.full(last - first, -1, np.int64)
    for member in range(first, last):
        count = ends[member] - begins[member]
        if count and not exempt[member]:
            least = _needed(count, share)
            number = count - least + 1
            _rare(hashes, begins[member], ends[member], counts, number, chosen)
            for n in range(number):
                entry = heads[hashes[chosen[n]] & mask]
                while entry >= 0:
                    other = members[entry]
                    entry = nexts[entry]
                    if seen[other - first] == member:
                        continue
                    seen[other - first] = member
                    found = _overlap(
                        hashes, begins[member], ends[member], begins[other], ends[other], least
                    )
                    if found > held[member] or (found >= least and other < keepers[member]):
                        keepers[member], held[member], least = other, found, found
        if keepers[member] >= 0:
            continue
        for i in range(begins[member], ends[member]):
            place = hashes[i] & mask
            if counts[place] < 2 or not wanted[place]:
                continue
            if used == len(members):
                members = np.concatenate((members, np.empty(used, np.int64)))
                nexts = np.concatenate((nexts, np.empty(used, np.int64)))
            members[used], nexts[used] = member, heads[place]
            heads[place] = used
            used += 1
