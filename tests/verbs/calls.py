"""Calls that mypy reads in `make test` and nothing runs: it must accept the first and find what is wrong in the others.

An error that is not there any more is reported as an unused `type: ignore`.
"""

import vitkit

vitkit.train("digits", vitkit.Recipe(epochs=2, lr=1, weights="a", crop_scale=(0.2, 1)))
vitkit.pretrain("digits", vitkit.Recipe(epochs=1), pretraining=vitkit.Pretraining(objective="mae", mask=0.5))
vitkit.compare("digits", ["a", "b"], vitkit.Recipe(epochs=1, method="full"), seeds=2)
vitkit.lab("head", recipe=vitkit.Recipe(seed=1), model="vit_micro_patch4_16")
vitkit.dry_run("digits", vitkit.Recipe(devices=8, epochs=3))
vitkit.predict("run", "x.png", promises=vitkit.Promises(reject=1), compute=vitkit.Compute(backend="onnx"))

vitkit.train("digits", epoch=2)  # type: ignore[call-arg]
vitkit.train("digits", vitkit.Recipe(epochs="2"))  # type: ignore[arg-type]
vitkit.train("digits", vitkit.Recipe(method="lore"))  # type: ignore[arg-type]
vitkit.predict("run", "x.png", compute=vitkit.Compute(device="gpu"))  # type: ignore[arg-type]

vitkit.bench("run", bakends="onnx")  # type: ignore[call-arg]
vitkit.convert("run", "folder", two="timm")  # type: ignore[call-arg]
vitkit.embed("run", "x.png", wat="mean")  # type: ignore[call-arg]
vitkit.explain("run", "x.png", methods="raw")  # type: ignore[call-arg]
vitkit.predict("run", "x.png", topp=5)  # type: ignore[call-arg]
vitkit.serve("run", prot=8000)  # type: ignore[call-arg]
vitkit.studio("digits", prot=8000)  # type: ignore[call-arg]

vitkit.Recipe(epohcs=1)  # type: ignore[call-arg]
vitkit.Compute(bakend="onnx")  # type: ignore[call-arg]
vitkit.Pretraining(maks=0.5)  # type: ignore[call-arg]
