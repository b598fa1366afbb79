"""Named errors and a warning: the argument, what was expected, what came and what to do."""


class R2NOError(Exception):
    """Base of every error that r2no raises on purpose."""


class NotFittedError(R2NOError, RuntimeError):
    """A result was asked of an object that has not been fitted."""


class GridMismatchError(R2NOError, ValueError):
    """Fields and cells, or two fields, live on different grids."""


class ShapeError(R2NOError, ValueError):
    """A tensor has the wrong number of axes, frames, channels or windows."""


class LayoutError(ShapeError):
    """A network was given, or gave, its axes in another order than declared."""


class NonFiniteError(R2NOError, ValueError):
    """NaN or infinity where finite numbers are needed."""


class EmptySplitError(R2NOError, ValueError):
    """A split, or a half of it, holds no windows."""


class ConfigError(R2NOError, ValueError):
    """A setting is unknown, out of range or contradicts another."""


class DeviceError(R2NOError, RuntimeError):
    """A device is not there."""


class DeviceMemoryError(R2NOError, MemoryError):
    """A batch does not fit into a device's memory; the message says which one does."""


class DataError(R2NOError, ValueError):
    """A data set is incomplete, inconsistent or of an unknown format."""


class UnknownNameError(R2NOError, LookupError):
    """A variable or dimension has another name; the message gives the nearest one."""


class IrregularGridError(R2NOError, ValueError):
    """A coordinate does not advance in equal steps."""


class FileDamagedError(R2NOError, OSError):
    """A file is truncated, altered or not what it claims to be."""


class FileMissingError(R2NOError, FileNotFoundError):
    """There is no such file."""


class StorageError(R2NOError, OSError):
    """A file could not be written; what was there before is untouched."""


class BusyError(StorageError):
    """Another process or thread is writing the same output."""


class CheckpointMismatchError(R2NOError, ValueError):
    """Weights do not fit the network they are loaded into."""


class FingerprintError(R2NOError, ValueError):
    """Something frozen changed, or parts of different origin were combined."""


class ProcessError(R2NOError, RuntimeError):
    """Another of the processes that work together ended."""


class RangeWarning(UserWarning):
    """Values are of another size than those the model was adapted to; perhaps in other units."""
