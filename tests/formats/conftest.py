"""Properties here are about answers, not about time: a slow machine is no failure."""

from hypothesis import settings

settings.register_profile("formats", deadline=None)
settings.load_profile("formats")
