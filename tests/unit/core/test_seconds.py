from __future__ import annotations

import doctest
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core import seconds as module
from leveret.core.seconds import LARGEST, LONGEST, fraction, seconds, shown, whole

TEN_YEARS = 10 * 365 * 86400


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, 0.0),
        (0.0, 0.0),
        (30, 30.0),
        (0.001, 0.001),
        (Decimal("0.001"), 0.001),
        (Decimal("1E-400"), 0.0),
        (timedelta(0), 0.0),
        (timedelta(milliseconds=1), 0.001),
        (timedelta(days=3650), float(TEN_YEARS)),
        (TEN_YEARS, float(TEN_YEARS)),
        (24 * 3600 + 1, 86401.0),
        (4294967296.001, 4294967296.001),
        (LONGEST, LONGEST),
    ],
)
def test_a_duration_in_any_form_is_exactly_that_many_seconds(given, expected):
    found = seconds(given, "delay")
    assert found == expected
    assert type(found) is float


@pytest.mark.parametrize("zero", [-0.0, Decimal("-0.0"), 0, timedelta(0)])
def test_zero_has_no_sign(zero):
    assert str(seconds(zero, "delay")) == "0.0"
    assert str(fraction(0.0 if isinstance(zero, timedelta) else zero, "jitter", most=1.0)) == "0.0"


NOT_NUMBERS = ["30", "", b"30", None, [], {}, True, False, 1j, Fraction(1, 2), object]


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_what_is_no_number_is_refused_with_its_name_value_and_type(value):
    with pytest.raises(ValueError) as caught:
        seconds(value, "timeout")
    assert str(caught.value).startswith(f"timeout={value!r}: expected seconds as a number")
    assert str(caught.value).endswith(f"got {type(value).__name__}")
    with pytest.raises(ValueError, match=r"^factor=.*: expected a number, got "):
        fraction(value, "factor", most=None)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-5, "delay=-5: expected 0 or more seconds"),
        (-1e-9, "delay=-1e-09: expected 0 or more seconds"),
        (Decimal("-1E-400"), "delay=Decimal('-1E-400'): expected 0 or more seconds"),
        (-(10**5000), "delay=an int of 16610 bits: expected 0 or more seconds"),
        (timedelta(days=-1), "delay=datetime.timedelta(days=-1): expected 0 or more seconds"),
        (float("nan"), "delay=nan: expected a finite number of seconds"),
        (float("inf"), "delay=inf: expected a finite number of seconds"),
        (float("-inf"), "delay=-inf: expected a finite number of seconds"),
        (Decimal("NaN"), "delay=Decimal('NaN'): expected a finite number of seconds"),
        (Decimal("sNaN"), "delay=Decimal('sNaN'): expected a finite number of seconds"),
        (Decimal("Infinity"), "delay=Decimal('Infinity'): expected a finite number of seconds"),
        (2**63, "delay=9223372036854775808: expected at most a thousand years (31557600000 seconds)"),
        (10**5000, "delay=an int of 16610 bits: expected at most a thousand years (31557600000 seconds)"),
        (
            Decimal("1E+400"),
            "delay=Decimal('1E+400'): expected at most a thousand years (31557600000 seconds)",
        ),
        (1e308, "delay=1e+308: expected at most a thousand years (31557600000 seconds)"),
    ],
    ids=shown,
)
def test_a_duration_that_cannot_be_meant_is_refused_as_it_was_given(value, words):
    with pytest.raises(ValueError) as caught:
        seconds(value, "delay")
    assert str(caught.value) == words


@given(
    st.one_of(
        st.integers(),
        st.floats(),
        st.decimals(),
        st.timedeltas(),
        st.text(),
        st.booleans(),
        st.none(),
        st.integers(0, 10**6).map(lambda power: 10 ** (power // 100)),
    )
)
def test_any_value_gives_finite_seconds_or_a_value_error_that_names_it(value):
    try:
        found: float | str = seconds(value, "delay")
    except ValueError as error:
        found = str(error)
    assert found.startswith("delay=") if isinstance(found, str) else 0.0 <= found <= LONGEST


@pytest.mark.parametrize(("value", "least"), [(0, 0), (1, 1), (6, 1), (LARGEST, 0)])
def test_a_whole_number_passes_unchanged(value, least):
    assert whole(value, "max_attempts", least=least) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "max_attempts=0: expected 1 or more"),
        (-1, "max_attempts=-1: expected 1 or more"),
        (-(10**5000), "max_attempts=an int of 16610 bits: expected 1 or more"),
        (True, "max_attempts=True: expected a whole number, got bool"),
        (6.0, "max_attempts=6.0: expected a whole number, got float"),
        ("6", "max_attempts='6': expected a whole number, got str"),
        (None, "max_attempts=None: expected a whole number, got NoneType"),
        (
            2**63,
            "max_attempts=9223372036854775808: expected at most 9223372036854775807, which is what 64 bits hold",
        ),
    ],
    ids=shown,
)
def test_what_is_no_whole_number_in_range_is_refused(value, words):
    with pytest.raises(ValueError) as caught:
        whole(value, "max_attempts", least=1)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("value", "most", "expected"),
    [
        (0, 1.0, 0.0),
        (1, 1.0, 1.0),
        (0.5, 1.0, 0.5),
        (Decimal("0.25"), 1.0, 0.25),
        (1e308, None, 1e308),
        (10**308, None, 1e308),
    ],
    ids=shown,
)
def test_a_fraction_in_range_is_a_float(value, most, expected):
    found = fraction(value, "jitter", most=most)
    assert found == expected
    assert type(found) is float


@pytest.mark.parametrize(
    "value",
    [-0.1, 1.000001, 2, float("nan"), float("inf"), Decimal("sNaN"), 10**400, Decimal("1E+400")],
    ids=shown,
)
def test_a_fraction_out_of_range_is_refused_with_the_range(value):
    with pytest.raises(ValueError) as caught:
        fraction(value, "jitter", most=1.0)
    assert str(caught.value) == f"jitter={shown(value)}: expected a finite number from 0 to 1"


@pytest.mark.parametrize("value", [-1, float("inf"), Decimal("NaN"), 10**400, Decimal("1E+400")], ids=shown)
def test_a_factor_that_no_float_holds_is_refused(value):
    with pytest.raises(ValueError) as caught:
        fraction(value, "factor", most=None)
    assert str(caught.value) == f"factor={shown(value)}: expected a finite number from 0 up"


def test_a_document_given_by_mistake_is_shown_by_its_beginning():
    with pytest.raises(ValueError) as caught:
        seconds("x" * 1_000_000, "delay")
    assert len(str(caught.value)) < 250
    assert "xxx…: expected seconds" in str(caught.value)
