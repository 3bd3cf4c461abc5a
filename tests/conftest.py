"""Property tests are not timed: a machine that is busy must not make one fail. Timings belong to `bench/`."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
