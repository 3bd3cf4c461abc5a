"""Runs workflow files really: the simulator's runners, for GitHub Actions and, in small, for other CIs.

Far enough for the files that `crcr init` writes: steps are executed by a real shell with the environment that the CI
would set. What a file asks for and this cannot do is a `Problem` in words, never a guess. There is no sandbox: it
runs the files of whoever started the simulator, as that person.
"""
