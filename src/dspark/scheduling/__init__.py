"""How many drafts of each request are verified. Needs numpy only: any engine can use it (docs/scheduling.md)."""

from dspark.core.conditionals import conditionals
from dspark.scheduling.cost import CostModel, RoundSeconds
from dspark.scheduling.cost_table import CostTable
from dspark.scheduling.fixed import FixedLength
from dspark.scheduling.lagged import LaggedScheduler
from dspark.scheduling.online_cost import OnlineCost, RoundTiming
from dspark.scheduling.park import Parked
from dspark.scheduling.prefix import PrefixScheduler
from dspark.scheduling.probe import ProbeSchedule
from dspark.scheduling.rate_floor import rate_floors
from dspark.scheduling.registry import SCHEDULERS, SchedulerConfig, build_scheduler
from dspark.scheduling.round import Batch, Outcome, Plan
from dspark.scheduling.scheduler import Scheduler
from dspark.scheduling.threshold import StaticThreshold

__all__ = [
    "SCHEDULERS",
    "Batch",
    "CostModel",
    "CostTable",
    "FixedLength",
    "LaggedScheduler",
    "OnlineCost",
    "Outcome",
    "Parked",
    "Plan",
    "PrefixScheduler",
    "ProbeSchedule",
    "RoundSeconds",
    "RoundTiming",
    "Scheduler",
    "SchedulerConfig",
    "StaticThreshold",
    "build_scheduler",
    "conditionals",
    "rate_floors",
]
