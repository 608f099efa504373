"""The file of an upload form (`ui.api.forms`): read in a thread, in a private folder that goes at once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from starlette.datastructures import FormData, UploadFile

from pipeline.audio.files import disk_errors
from pipeline.codes import CosydError
from ui.services import Services

T = TypeVar("T")


def file_name(form: FormData) -> str:
    """What the sender calls the file; only ever shown."""
    upload = form.get("audio")
    return (upload.filename or "")[:200] if isinstance(upload, UploadFile) else ""


async def read_upload(
    services: Services, form: FormData, read: Callable[[Path], T], field: str = "audio"
) -> T:
    """`read(path)` of the file in a field. Raises CosydError(bad_audio | storage_full), and what
    `read` raises."""
    upload = form.get(field)
    if not isinstance(upload, UploadFile):
        raise CosydError("bad_audio", reason="empty")

    def work() -> T:
        with tempfile.TemporaryDirectory(prefix="upload-", dir=services.scratch) as folder:
            path = Path(folder) / field
            with disk_errors(), path.open("wb") as out:
                shutil.copyfileobj(upload.file, out)
            return read(path)

    return await services.in_audio_thread(work)
