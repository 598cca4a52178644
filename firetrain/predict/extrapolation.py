"""Notes about predictions that reach beyond what was measured."""

from __future__ import annotations

from firetrain.predict.epochs import Points
from firetrain.predict.question import Question
from firetrain.records.profile import Profile


def extrapolations(question: Question, profile: Profile, points: Points) -> list[str]:
    """Notes about what is predicted beyond the measurements of `profile`, or assumed."""
    notes = []
    own = [step for step in profile.steps if step.model == question.model and profile.calibrated]
    measured = sorted(step.batch_per_rank for step in own)
    shares = sorted({-(-question.batch(count) // count) for count in question.counts})
    if measured and (shares[0] < measured[0] or shares[-1] > measured[-1]):
        notes.append(
            f"extrapolation: compute time was measured for {', '.join(map(str, measured))} images per rank, predicted for "
            f"{' to '.join(map(str, sorted({shares[0], shares[-1]})))}"
        )
    levels = {link.level for link in profile.links}
    if max(question.counts) > question.per_node and "between nodes" not in levels:
        notes.append("the profile has no links between nodes: links inside a node are used instead")
    if question.per_node > 1 and max(question.counts) > 1 and "inside a node" not in levels:
        notes.append("the profile has no links inside a node: links between nodes are used instead")
    notes += _beyond_epochs(question, points)
    if not profile.message_gap and max(question.counts) > 1:
        notes.append(
            "per-message overhead was not measured; its upper bound, half the latency, is assumed (measure it with firetrain "
            "bench link)"
        )
    return notes


def _beyond_epochs(question: Question, points: Points) -> list[str]:
    if not points:
        return []
    asked = [question.batch(count) for count in question.counts]
    known = [batch for batch, _ in points]
    notes = []
    if max(asked) > max(known):
        notes.append(f"extrapolation: epochs are known for batches up to {max(known)}, predicted up to {max(asked)}")
    if min(asked) < min(known):
        notes.append(f"extrapolation: epochs are known for batches from {min(known)}, predicted from {min(asked)}")
    return notes
