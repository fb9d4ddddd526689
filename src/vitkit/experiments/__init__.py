"""Questions that take many trainings to answer, and what a training will take."""
