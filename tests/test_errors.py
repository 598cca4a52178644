"""Errors: exit codes for scripts, and suggestions."""

from __future__ import annotations

import re

import pytest

from firetrain import errors
from firetrain.errors import CannotCreate, CannotWrite, FiretrainError, LostPeer, UserError, nearest, unknown


def test_exit_codes_are_those_of_the_documentation() -> None:
    codes = {kind.__name__: kind.exit_code for kind in (FiretrainError, UserError, LostPeer, CannotCreate, CannotWrite)}
    assert codes == {"FiretrainError": 1, "UserError": 2, "LostPeer": 69, "CannotCreate": 73, "CannotWrite": 74}
    told = errors.__doc__ or ""
    assert all(re.search(rf"\b{code}\b", told) for code in codes.values())


@pytest.mark.parametrize(
    ("name", "meant"), [("rign", "ring"), ("hierarchial", "hierarchical"), ("Ring", "ring"), ("xyz", None), ("", None)]
)
def test_the_nearest_name_is_suggested_and_no_far_one(name: str, meant: str | None) -> None:
    assert nearest(name, ("ring", "tree", "hierarchical")) == meant


def test_an_unknown_name_is_told_in_one_line_with_all_valid_ones() -> None:
    assert unknown("site", "tets", ["test", "a"]) == "unknown site 'tets', did you mean test? (valid: a, test)"
    assert unknown("site", "x\ny", []) == r"unknown site 'x\ny' (valid: none)"


def test_a_user_s_mistake_has_no_traceback_unless_asked_for(firetrain) -> None:  # type: ignore[no-untyped-def]
    mistake = ("topology", "show", "rign")
    plain, debugged = firetrain(*mistake), firetrain("--debug", *mistake)
    assert plain.returncode == debugged.returncode == 2
    assert "did you mean ring?" in plain.stderr and "Traceback" not in plain.stderr
    assert "Traceback" in debugged.stderr and "did you mean ring?" in debugged.stderr
