"""What a draft is worth: records of rounds, how well survival is predicted, and calibration.

Needs numpy and safetensors only: any engine can use it (docs/calibration.md).
"""

from dspark.calibration.exploration import RoundLottery
from dspark.calibration.file import Calibration, Pair, Sampling, load_calibration, save_calibration
from dspark.calibration.isotonic import IsotonicSurvival, fit_isotonic
from dspark.calibration.logistic import LogisticSurvival, fit_logistic
from dspark.calibration.methods import MethodName
from dspark.calibration.metrics import auroc, brier, expected_calibration_error, reliability
from dspark.calibration.online import OnlineLogistic
from dspark.calibration.records import DraftMode, RoundRecords, concatenate, split_by_request
from dspark.calibration.report import CalibrationReport, calibrate
from dspark.calibration.shards import RecordStore, read_records
from dspark.calibration.signals import RoundHistory, Signals, Source, SurvivalModel, law_entropy, peak_log_odds
from dspark.calibration.temperature import SequentialTemperature, fit_temperatures
from dspark.core.conditionals import conditionals

__all__ = [
    "Calibration",
    "CalibrationReport",
    "DraftMode",
    "IsotonicSurvival",
    "LogisticSurvival",
    "MethodName",
    "OnlineLogistic",
    "Pair",
    "RecordStore",
    "RoundHistory",
    "RoundLottery",
    "RoundRecords",
    "Sampling",
    "SequentialTemperature",
    "Signals",
    "Source",
    "SurvivalModel",
    "auroc",
    "brier",
    "calibrate",
    "concatenate",
    "conditionals",
    "expected_calibration_error",
    "fit_isotonic",
    "fit_logistic",
    "fit_temperatures",
    "law_entropy",
    "load_calibration",
    "peak_log_odds",
    "read_records",
    "reliability",
    "save_calibration",
    "split_by_request",
]
