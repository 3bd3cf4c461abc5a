"""Sums by hour, and by job and day, kept with every fact.

`sums` adds one job or dispatch, `recount_changed_jobs` moves the jobs that a fact counts differently from now on, and
`rebuild_all_sums` computes everything once from the jobs (migrations, demo, tests).
"""
