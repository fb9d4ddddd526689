"""Classifiers over HTTP: who may ask, how questions become batches, and what is answered."""
