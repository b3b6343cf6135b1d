"""Every error that dspark raises on purpose: one tree, so that callers can catch one class.

A message says what was found, what was expected and what to do. The CLI prints it as one line and exits with 2, or
with 1 for a `NumericalError` or an `EndpointError`.
"""


class DsparkError(Exception):
    """Base of all errors that a user can cause and cure."""


class ConfigError(DsparkError):
    """A configuration or option has a value that cannot work."""


class FormatError(DsparkError):
    """A file is missing, unreadable or not in the format it should have."""


class CompatibilityError(DsparkError):
    """Two artefacts (target, drafter, template, calibration) do not belong together."""


class CapacityError(DsparkError):
    """A request does not fit: context length, cache positions, memory."""


class DependencyError(DsparkError):
    """An optional package that this feature needs is not installed."""


class EndpointError(DsparkError):
    """A server that was to answer cannot be reached, refuses, or fails whatever it is asked."""


class NumericalError(DsparkError):
    """The input was fine, but the computation went wrong."""


class SamplingError(NumericalError):
    """No token can be drawn: the logits hold NaN, or every token is masked."""


class EngineError(NumericalError):
    """The serving engine has failed, was closed, or broke a promise: it lost a request, or answered one twice."""
