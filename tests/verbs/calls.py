"""Calls that mypy reads in `make test` and nothing runs: it must accept the first and find what is wrong in the others.

An error that is not there any more is reported as an unused `type: ignore`.
"""

import vitkit

vitkit.train("digits", epochs=2, lr=1, weights="a", crop_scale=(0.2, 1))
vitkit.pretrain("digits", objective="mae", mask=0.5, epochs=1)
vitkit.compare("digits", ["a", "b"], epochs=1, devices=2, method="full")
vitkit.lab("head", model="vit_micro_patch4_16", seed=1)
vitkit.dry_run("digits", devices=8, epochs=3)

vitkit.train("digits", epoch=2)  # type: ignore[call-arg]
vitkit.train("digits", epochs="2")  # type: ignore[arg-type]
vitkit.train("digits", method="lore")  # type: ignore[arg-type]
vitkit.pretrain("digits", mixup=0.5)  # type: ignore[call-arg]
vitkit.compare("digits", ["a", "b"], folds=5)  # type: ignore[call-arg]
vitkit.lab("head", epohcs=1)  # type: ignore[call-arg]
vitkit.dry_run("digits", lr="1e-3")  # type: ignore[arg-type]
vitkit.predict("run", "x.png", topp=5)  # type: ignore[call-arg]
