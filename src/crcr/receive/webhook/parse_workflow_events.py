"""GitHub's own word about a downstream's runs and jobs, read from `workflow_run` and `workflow_job`.

The body's `status` counts, not the action that brought it: deliveries are unordered, and a `completed` of an
attempt that was re-run at once may already show the next one.
"""

from crcr.decide.events import WorkflowJobEvent, WorkflowRunEvent
from crcr.decide.github.values import ActionsJob, ActionsRun
from crcr.decide.github.workflow_runs import parse_check_run_id, parse_conclusion, path_without_ref
from crcr.receive.webhook import payload_structs as shapes
from crcr.receive.webhook.payload_fields import branch, id_of, plain, repo_name, utc, utc_or_none


def run_told(body: shapes.WorkflowRunBody) -> WorkflowRunEvent:
    run, workflow = body.workflow_run, body.workflow or shapes.WorkflowPart()
    return WorkflowRunEvent(
        repository=repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        run=ActionsRun(
            run_id=run.id,
            attempt=run.run_attempt or 1,
            status=plain(run.status),
            conclusion=parse_conclusion(run.conclusion),
            display_title=plain(run.display_title or ""),
            workflow_name=plain(run.name or workflow.name or ""),
            workflow_path=plain(path_without_ref(run.path or workflow.path or "")),
            event=plain(run.event),
            created_at=utc(run.created_at, "$.workflow_run.created_at"),
        ),
        installation_id=id_of(body.installation),
        default_branch=branch(body.repository.default_branch),
    )


def job_told(body: shapes.WorkflowJobBody) -> WorkflowJobEvent:
    job = body.workflow_job
    return WorkflowJobEvent(
        repository=repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        run_id=job.run_id,
        job=ActionsJob(
            job_id=job.id,
            check_run_id=parse_check_run_id(job.check_run_url),
            name=plain(job.name),
            attempt=job.run_attempt or 1,
            status=plain(job.status),
            conclusion=parse_conclusion(job.conclusion),
            started_at=utc_or_none(job.started_at, "$.workflow_job.started_at"),
            completed_at=utc_or_none(job.completed_at, "$.workflow_job.completed_at"),
        ),
        installation_id=id_of(body.installation),
        default_branch=branch(body.repository.default_branch),
    )
