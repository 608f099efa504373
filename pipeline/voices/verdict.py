"""What was found about a clip, as JSON in a person's language: the same from API and `cosyd --json`."""

from __future__ import annotations

from typing import Any

from pipeline.messages import Language, render
from pipeline.voices.cut import Cut
from pipeline.voices.reference import Report


def report_view(report: Report, language: Language) -> dict[str, Any]:
    """As JSON: `good`, `usable`, `checks`, `advice`, `seconds`, `clip`, `shortened`, `suggestions`."""
    checks = [
        {
            "check": check.name,
            "label": render(f"voice.check_{check.name}", language),
            "verdict": check.verdict,
            "value": check.value,
            "message": check.message(language),
        }
        for check in report.checks
    ]
    return {
        "good": report.good,
        "usable": report.refusal is None,
        "checks": checks,
        "advice": [
            {"code": check.advice, "message": check.message(language)}
            for check in report.checks
            if check.advice
        ],
        "seconds": report.seconds,
        "clip": _cut_view(report.cut),
        "shortened": report.shortened,
        "suggestions": [_cut_view(cut) for cut in report.suggestions],
    }


def _cut_view(cut: Cut) -> dict[str, float]:
    return {"start": round(cut.start, 2), "end": round(cut.end, 2), "seconds": round(cut.seconds, 2)}
