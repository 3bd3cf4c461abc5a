"""Benchmarks: one sub-package per subject. docs/performance.md lists the bars and the last figures."""
