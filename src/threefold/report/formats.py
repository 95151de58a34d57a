"""Figures to words, the same way in every section. None, and what is no figure, is a dash."""

from __future__ import annotations

import math

DASH = "–"


def is_figure(value: object) -> bool:
    """True for a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def count(value: object) -> str:
    """12,345; what has a fraction is rounded to three digits that say something: 12.3, 0.123."""
    if not is_figure(value):
        return DASH
    number = float(value)  # type: ignore[arg-type]
    if number == int(number) or abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:,.1f}" if abs(number) >= 10 else f"{number:.3g}"


def short(value: float) -> str:
    """For an axis: 4,096 as it is, 262144 as 262k, 1048576 as 1.05M."""
    for unit, size in (("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e6 if unit == 'M' else 1e3):.3g}{unit}"
    return f"{value:,.10g}"


def share(value: object) -> str:
    """0.123 as 12 %."""
    return f"{100 * float(value):.0f} %" if is_figure(value) else DASH  # type: ignore[arg-type]


def percent(value: object) -> str:
    """12.3 as 12 %."""
    return f"{float(value):.0f} %" if is_figure(value) else DASH  # type: ignore[arg-type]


def change(value: object) -> str:
    """0.123 as +12 %."""
    if not is_figure(value):
        return DASH
    percent = round(100 * float(value))  # type: ignore[arg-type]
    return f"{percent:+d} %" if percent else "0 %"


def times(value: object) -> str:
    """1.234 as 1.23 ×."""
    return f"{float(value):.2f} ×" if is_figure(value) else DASH  # type: ignore[arg-type]


def plural(number: int, word: str) -> str:
    """`1 user`, `2 users`."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")
