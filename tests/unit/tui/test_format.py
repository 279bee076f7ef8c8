"""The wording of numbers: boundaries, unknowns, and one unit per column."""

import math

import pytest

from fsdp_tui.tui import format as words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (999, "999 B"),
        (1023, "1.00 KiB"),  # four digits never
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 2**20, "10.0 MiB"),
        (999.4 * 2**20, "999 MiB"),
        (999.6 * 2**20, "0.98 GiB"),
        (14.96 * 2**30, "15.0 GiB"),
        (141 * 2**30, "141 GiB"),
        (3 * 2**40, "3.00 TiB"),
        (-2.5 * 2**30, "−2.50 GiB"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_size(value: float | None, text: str) -> None:
    assert words.size(value) == text


def test_unknown_is_never_zero() -> None:
    for say in (words.size, words.duration, words.clock, words.rate, words.percent, words.count, words.number):
        assert say(None) == words.UNKNOWN
        assert words.UNKNOWN not in say(0)
    assert words.age(None) == "age –"
    assert words.change(None, 1) == words.change(1, None) == words.change(1, 0) == words.UNKNOWN


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (850, "850 ns"),
        (12_300, "12.3 us"),
        (999_700, "1.00 ms"),
        (752_000_000, "752 ms"),
        (1_250_000_000, "1.25 s"),
        (59_940_000_000, "59.9 s"),
        (59_960_000_000, "1:00"),
        (83_000_000_000, "1:23"),
        (3_723_000_000_000, "1:02:03"),
        (-5_000_000, "−5.00 ms"),
    ],
)
def test_duration(ns: int, text: str) -> None:
    assert words.duration(ns) == text


def test_signed_numbers_have_a_real_minus_and_no_signed_zero() -> None:
    assert words.percent(0.031, signed=True) == "+3.1 %"
    assert words.percent(-0.004, signed=True) == "−0.4 %"
    assert words.percent(-0.0001, signed=True) == words.percent(0.0001, signed=True) == "0.0 %"
    assert words.change(281, 262) == "+7.3 %"
    assert words.duration(41e6, signed=True) == "+41.0 ms"


def test_rates_counts_numbers_and_ages() -> None:
    assert [words.rate(v) for v in (850, 10_900, 1_200_000, 0)] == ["850", "10.9k", "1.20M", "0"]
    assert words.count(1225) == "1,225"
    assert [words.number(v) for v in (2.113, 11.0, 0.0213, 1.234e-7, 0.0)] == [
        "2.113",
        "11.00",
        "0.021",
        "1.2e-07",
        "0.000",
    ]
    assert words.number(math.nan) == "nan"  # a loss that was measured as NaN is known
    assert words.number(-math.inf) == "−inf"
    assert [words.age(s * 1e9) for s in (0.2, 9.94, 41, 125)] == ["0.2 s old", "9.9 s old", "41 s old", "2:05 old"]
    assert words.clock(2467e9) == "0:41:07"


def test_a_column_has_one_unit() -> None:
    """What is there and too little for it is not 0.0."""
    values = [139 * 2**30, 4.6 * 2**30, None]
    unit = words.scale_for(values)
    assert (unit.name, unit.decimals) == ("GiB", 1)
    assert [words.in_unit(value, unit) for value in values] == ["139.0", "4.6", "–"]
    assert [words.in_unit(value, unit) for value in (2**20, 0)] == ["<0.1", "0.0"]
    assert words.in_unit(2**20, unit._replace(decimals=2)) == "<0.01"
    assert words.scale_for([None, math.nan]).name == "B"


def test_axis_labels_share_their_decimals() -> None:
    assert words.axis([2.5, 5.0, 7.5]) == ["2.5", "5.0", "7.5"]
    assert words.axis([1000.0, 2000.0]) == ["1,000", "2,000"]
    assert words.axis([-1.0, 0.0, 1.0]) == ["−1", "0", "1"]


def test_plain_text_moves_no_cursor_and_sets_no_colour() -> None:
    """Sequences go whole, other control characters are seen; text of any script stays."""
    assert words.plain("a \x1b[1;31mred\x1b[0m \x1b]0;title\x07b\x1b(") == "a red b·("
    assert words.plain("\x03\x9b2J\ttab\r") == "··2J tab "
    assert words.plain("損失 0.5 – Größe\u3000µ") == "損失 0.5 – Größe µ"
    assert words.plain_lines("one\x1b[K\n\ttwo\n") == "one\n two\n"


def test_fit_says_that_it_cut() -> None:
    assert words.fit("abc", 5) == "abc  "
    assert words.fit("abcdef", 4) == "abc…"
    assert words.fit("abc", 0) == ""


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("nvml_used_bytes", 3 * 2**30, "3.00 GiB"),
        ("power_mw", 312_400, "312 W"),
        ("utilization_percent", 87, "87 %"),
        ("temperature_c", 61, "61 °C"),
        ("retries", 3, ""),
        ("power_mw", None, words.UNKNOWN),
        ("temperature_c", None, words.UNKNOWN),
        ("utilization_percent", None, words.UNKNOWN),
    ],
)
def test_a_reading_has_the_unit_of_its_name(name: str, value: float | None, text: str) -> None:
    assert words.reading(name, value) == text
