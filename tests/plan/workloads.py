"""Workloads that the planner's tests share."""

from functools import cache

from shoal.arrays.config import degrees
from shoal.jobs.plan import layout_of, workload_of
from shoal.jobs.resolve import resolve
from shoal.plan.layout import Layout, Workload

__all__ = ["degrees", "layout", "workload"]


@cache
def workload(recipe: str, *overrides: str) -> Workload:
    """What a recipe's step computes."""
    return workload_of(resolve(recipe, overrides))


def layout(recipe: str, chips: int, *overrides: str) -> Layout:
    """A recipe's own layout."""
    return layout_of(resolve(recipe, overrides), chips)
