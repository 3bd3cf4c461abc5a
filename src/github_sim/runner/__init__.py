"""Executes workflow files for real: the simulator's runner of GitHub Actions.

It covers what the files of `crcr init` need. A real shell runs the steps with the environment that GitHub sets.
Anything that a file uses and the runner does not support is reported as a `Problem`, never guessed. There is no
sandbox: steps run with the rights of the person who started the simulator.
"""
