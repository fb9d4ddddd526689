"""Answers for many images: the pipeline that reads and computes, the backends that compute, the files of answers."""
