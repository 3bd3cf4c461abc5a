"""A stateful GitHub on loopback, for the demo and the tests.

It speaks real HTTP and imports nothing else of crcr, so it cannot agree with our mistakes by sharing code.
`github_sim.github.GitHub` is the way in.
"""
