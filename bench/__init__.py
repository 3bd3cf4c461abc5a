"""Load runs against real processes on loopback; figures and their bars stand in docs/performance.md."""
