"""Questions that take many trainings to answer."""
