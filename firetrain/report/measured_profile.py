"""The measurements of `firetrain bench profile` as text."""

from __future__ import annotations

from collections.abc import Iterator

from firetrain.predict.calibration import Measurements
from firetrain.records.profile import Profile


def lines(found: Measurements, after: Profile) -> Iterator[str]:
    """The measurements as text, a line each."""
    for step in found.steps:
        yield (
            f"{step.batch_per_rank} images per rank: forward {1e3 * step.forward_s.value:.2f} ms, backward "
            f"{1e3 * step.backward_s.value:.2f} ms, update {1e3 * step.update_s.value:.2f} ms, jitter {step.jitter.value:.1%}"
        )
    for one in found.links:
        yield f"{one.level}, {one.pairs}: {one.latency_s * 1e6:.1f} us, {one.bytes_per_s / 1e6:.1f} MB/s"
    if found.gap:
        yield f"per-message overhead at each end: {found.gap.value * 1e6:.1f} us"
    for name, factor in {"incast": after.incast, "congestion": after.congestion}.items():
        if found.crowds and factor:
            yield f"{name}: a link is {factor.value:.2f} times slower with 32 senders"
    yield f"image loading: {found.read.value:.0f} images/s per node"
    if found.world.size > 1:
        left = after.residuals[-1].seconds.value
        yield f"step on {found.world.size} ranks: {1e3 * found.whole.value:.2f} ms, of which {1e3 * left:.2f} ms are unexplained"
