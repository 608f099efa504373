"""The take check by words (`take_check = "words"`): a segment is written down and compared with its text.

In the worker, beside the engine, since a process for each segment would cost a second each time. What cannot
be heard here (no model, another language) is not judged: a take is never refused for lack of a listener.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pipeline.codes import CosydError
from pipeline.engines.base import F32Mono, Segment
from pipeline.hearing.compare import other_words
from pipeline.hearing.model import require_hearing
from pipeline.jobs import SAMPLE_RATE
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.text.language import detect, primary

log = logging.getLogger(__name__)
_told: set[str] = set()


def hearing_check(config: Config, paths: StatePaths, segment: Segment) -> Callable[[F32Mono], bool] | None:
    """What tells whether a take says other words; None where nobody can hear it."""
    if config.take_check != "words":
        return None
    from pipeline.hearing.transcriber import transcriber

    try:
        listener = transcriber(require_hearing(config, paths))
    except CosydError as error:
        reason = str(error.params.get("reason"))
        if reason not in _told:  # once, not for each segment
            _told.add(reason)
            log.warning("takes are not checked by words: %s", reason)
        return None
    language = primary(segment.language) or detect(segment.text)
    if not listener.hears(language):
        return None
    return lambda take: other_words(segment.text, listener.hear(take, SAMPLE_RATE, language).text, language)
