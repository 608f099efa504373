"""The named endpoint `/speak` for gradio_client: text in, audio file out. The page itself does not use it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import gradio as gr

from pipeline.codes import CosydError
from pipeline.jobs import FORMATS
from pipeline.messages import error_text
from ui.jobs import Desk
from ui.renditions import Renditions
from ui.services import Services


def speak_function(services: Services, desk: Desk, renditions: Renditions) -> Callable[..., Awaitable[Any]]:
    """`speak(text, voice, speed, seed, format)`: waits without a thread, so any number may wait at once."""

    async def speak(
        text: str, voice: str = "", speed: float = 1.0, seed: int | None = None, format: str = "wav"
    ) -> gr.FileData:
        try:
            if format not in FORMATS:
                raise CosydError("unknown_format", value=str(format)[:80], allowed=", ".join(FORMATS))
            fields: dict[str, Any] = {
                "text": text,
                "voice": voice,
                "speed": speed,
                "format": format,
                "source": "api",
            }
            if seed is not None:
                fields["seed"] = int(seed)
            checked = desk.check(fields, max_chars=services.config.limits.text_chars)
            accepted = await desk.accept(checked, patience_s=services.config.patience.page_s)
            await desk.wait_done(accepted.id)
            final = services.paths.final_audio(accepted.created_at, accepted.id)
            async with renditions.lend(accepted.id, final, format) as path:
                # Below Gradio's own folder, which `delete_cache` empties.
                below = services.scratch / "gradio"
                below.mkdir(mode=0o700, exist_ok=True)
                folder = Path(tempfile.mkdtemp(dir=below))
                copy = await services.in_audio_thread(lambda: shutil.copyfile(path, folder / path.name))
            return gr.FileData(path=str(copy), orig_name=copy.name)
        except CosydError as error:
            raise gr.Error(error_text(error.code, "en", error.params), print_exception=False) from None

    return speak
