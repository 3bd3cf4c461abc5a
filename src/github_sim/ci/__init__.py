"""Downstream CI: runs and jobs that answer a dispatch and report to the relay."""
