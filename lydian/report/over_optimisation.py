"""The picture of over-optimisation: proxy reward and gold accuracy against the distance from where the policy began."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from collections.abc import Sequence as Seq

from lydian.evaluation.over_optimisation import Course, Round

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 52, 16, 40
Place = Callable[[float], float]


def over_optimisation_svg(course: Course) -> str:
    """Inline SVG of a course; proxy on the right axis, gold on the left, both over √KL, or over rounds without KL.

    The square root spreads the early rounds, in which most happens. Gold's best round is marked. Colours are the
    report's variables, with fallbacks, so that it also stands alone.
    """
    has_distance = all(found.kl is not None for found in course.rounds)
    distances = [
        math.sqrt(max(found.kl or 0.0, 0.0)) if has_distance else float(found.round) for found in course.rounds
    ]
    along = _scale(distances, LEFT, WIDTH - RIGHT)
    measured = [(found, at) for found, at in zip(course.rounds, distances, strict=True) if found.gold is not None]
    proxy = _scale([found.proxy for found in course.rounds], HEIGHT - BOTTOM, TOP)
    gold = _scale([found.gold or 0.0 for found, _ in measured], HEIGHT - BOTTOM, TOP)
    points = [(along(at), proxy(found.proxy)) for found, at in zip(course.rounds, distances, strict=True)]
    parts = [
        _line(points, "var(--a, #2c5f9e)", "proxy reward", "6 3"),
        _line(
            [(along(at), gold(found.gold or 0.0)) for found, at in measured],
            "var(--gold-ink, #82600a)",
            "gold accuracy",
        ),
        *_best_mark(course, distances, along, gold),
        *_axes(course.rounds, distances, along, proxy, gold if measured else None, has_distance),
    ]
    title = f"Proxy reward and gold accuracy of {course.name}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="var(--sans, sans-serif)" font-size="11">'
        f"<title>{html.escape(title)}</title>{''.join(parts)}</svg>"
    )


def _scale(values: Seq[float], start: float, end: float) -> Place:
    """Numbers to places, linear; one number alone stands in the middle."""
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    span = high - low

    def place(value: float) -> float:
        return start + (end - start) * ((value - low) / span if span else 0.5)

    return place


def _line(points: Seq[tuple[float, float]], colour: str, name: str, dash: str = "") -> str:
    if not points:
        return ""
    path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>' for x, y in points)
    return (
        f'<g><title>{name}</title><path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dashed}/>{dots}</g>'
    )


def _best_mark(course: Course, distances: Seq[float], along: Place, gold: Place) -> list[str]:
    if course.best is None or course.best.gold is None:
        return []
    x, y = along(distances[course.rounds.index(course.best)]), gold(course.best.gold)
    ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="var(--gold-ink, #82600a)" stroke-width="1.5"/>'
    return [f"<g><title>best gold, round {course.best.round}</title>{ring}</g>"]


def _axes(
    rounds: Seq[Round], distances: Seq[float], along: Place, proxy: Place, gold: Place | None, has_distance: bool
) -> list[str]:
    ink, below = "var(--muted, #62646b)", HEIGHT - BOTTOM
    rule = 'stroke="var(--line, #e0dbcf)" stroke-width="1"'
    parts = [f'<path d="M{LEFT},{below}H{WIDTH - RIGHT}" {rule} fill="none"/>']

    def text(x: float, y: float, content: str, anchor: str, colour: str = ink) -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{content}</text>'

    for at in sorted({min(distances), max(distances)}):
        parts.append(text(along(at), below + 15, f"{at:.3g}", "middle"))
    parts.append(text(WIDTH / 2, HEIGHT - 8, "√KL to the start, nats" if has_distance else "round", "middle"))
    parts.append(text(WIDTH - 8, HEIGHT - 8, "proxy reward (dashed)", "end", "var(--a, #2c5f9e)"))
    values = [found.proxy for found in rounds]
    for value in sorted({min(values), max(values)}):
        parts.append(text(WIDTH - RIGHT + 8, proxy(value) + 4, f"{value:.3g}", "start", "var(--a, #2c5f9e)"))
    if gold is not None:
        parts.append(text(8, HEIGHT - 8, "gold accuracy", "start", "var(--gold-ink, #82600a)"))
        shares = [found.gold for found in rounds if found.gold is not None]
        for share in sorted({min(shares), max(shares)}):
            parts.append(text(LEFT - 8, gold(share) + 4, f"{share:.0%}", "end", "var(--gold-ink, #82600a)"))
    return parts
