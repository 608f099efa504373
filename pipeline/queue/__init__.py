"""The queue in the jobs table: one door to its parts. Functions on a connection; `now` is wall seconds.

`admission` accepts jobs and says how long they wait, `order` picks the next one (pure), `lease` hands it to
a worker and takes it back, `segments` keeps its pieces, `ending` closes it with its generation row. Used by
web, worker, supervisor and CLI; imports neither sqlite_utils nor numpy.
"""

from pipeline.queue.admission import estimated_rtf, position, queue_stats, submit
from pipeline.queue.ending import end_job, end_overdue, fail_engine_jobs, request_cancel
from pipeline.queue.lease import (
    cancel_requested,
    claim,
    expire_leases,
    release,
    renew_lease,
    requeue_owner,
    requeue_running,
    retry_leaner,
    still_held,
)
from pipeline.queue.order import candidates, gives_way, next_job
from pipeline.queue.rows import get_job, set_wait_reason
from pipeline.queue.segments import (
    begin_segment,
    fail_segment,
    finish_segment,
    load_segments,
    plan_segments,
    reopen_segments,
)
from pipeline.queue.values import (
    MAX_ATTEMPTS,
    POISON_CRASHES,
    Candidate,
    Claim,
    EngineQueue,
    Job,
    Outcome,
    Planned,
    Position,
    Requeued,
    SegmentRow,
)

__all__ = [
    "MAX_ATTEMPTS",
    "POISON_CRASHES",
    "Candidate",
    "Claim",
    "EngineQueue",
    "Job",
    "Outcome",
    "Planned",
    "Position",
    "Requeued",
    "SegmentRow",
    "begin_segment",
    "cancel_requested",
    "candidates",
    "claim",
    "end_job",
    "end_overdue",
    "estimated_rtf",
    "expire_leases",
    "fail_engine_jobs",
    "fail_segment",
    "finish_segment",
    "get_job",
    "gives_way",
    "load_segments",
    "next_job",
    "plan_segments",
    "position",
    "queue_stats",
    "release",
    "renew_lease",
    "reopen_segments",
    "request_cancel",
    "requeue_owner",
    "requeue_running",
    "retry_leaner",
    "set_wait_reason",
    "still_held",
    "submit",
]
