"""The parts of a run's time: one list for records, tables, plots and screens."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """A part of a run's time.

    - `key`: key of its seconds in metrics and summaries.
    - `name`: name in tables, plots and screens.
    - `colour`: colour in plots.
    - `short`: heading of its column; default: the name.
    """

    key: str
    name: str
    colour: str
    short: str = ""

    @property
    def heading(self) -> str:
        """The heading of the part's column in a table."""
        return self.short or self.name


COMPUTE = Part("compute_s", "compute", "#3b6fb6")
EXPOSED = Part("exposed_communication_s", "exposed communication", "#d1495b", "exposed")
DATA = Part("data_s", "waiting for data", "#5aa469", "data")
# under a strategy whose ranks exchange activations: waiting for them and for their gradients. Stages of a pipeline wait for other
# stages, which is told apart as the bubble; it includes the time that their messages take
EXCHANGE = Part("exchange_s", "exchange of activations", "#e8a33d", "exchange")
BUBBLE = Part("bubble_s", "pipeline bubble", "#b07aa1", "bubble")
# left out of records and tables where nothing has them
OF_A_PLACEMENT = (EXCHANGE, BUBBLE)
# their sum is the time of a step on rank 0
OF_A_STEP = (COMPUTE, EXPOSED, *OF_A_PLACEMENT, DATA)

# logging, checksums and decisions: not in any step
BETWEEN_STEPS = Part("other_s", "between steps", "#8a93a6")

# not on the clock of time-to-accuracy: queueing (in each attempt); start-up of the processes
QUEUE = Part("queue_s", "queue", "#9e9e9e")
STARTUP = Part("startup_s", "start-up", "#bdbdbd")
# on the clock, outside of steps: opening data and building the model; evaluations; checkpoints; restart of later attempts
OPENING = Part("opening_s", "data and model set-up", "#7d5ba6")
EVALUATION = Part("evaluation_s", "evaluation", "#2a9d8f")
CHECKPOINT = Part("checkpoint_s", "checkpoints", "#8d6e63")
RESTART = Part("restart_s", "restart", "#b9770e")
# steps that were repeated after a failure; they are also counted as steps
LOST = Part("lost_s", "repeated steps", "#ef6c00")
BESIDE_STEPS = (OPENING, EVALUATION, CHECKPOINT, RESTART)
SPENT = (QUEUE, STARTUP, *BESIDE_STEPS, LOST)

# additional parts of a predicted step; the table has no columns for parts that no row has
SLOWEST = Part("slowest_s", "waiting for the slowest", "#b9770e")
UPDATE = Part("update_s", "update", "#7d5ba6")
UNEXPLAINED = Part("unexplained_s", "unexplained", "#8a93a6")
INPUT = Part("input_s", "input", "#5aa469")
OF_A_PREDICTED_STEP = (COMPUTE, SLOWEST, *OF_A_PLACEMENT, EXPOSED, UPDATE, UNEXPLAINED, INPUT)
