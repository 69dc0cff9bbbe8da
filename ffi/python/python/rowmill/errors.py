"""What can go wrong. Every error is an :class:`Error`, and says in a sentence what to do."""

__all__ = [
    "BusyError",
    "CancelledError",
    "ClosedError",
    "ConnectError",
    "DeviceError",
    "DtypeError",
    "Error",
    "ExpiredError",
    "FeatureError",
    "IdError",
    "InputError",
    "OverloadedError",
    "RefusedError",
    "ReplyTimeout",
    "RowUnavailableError",
    "WaitTimeout",
]


class Error(Exception):
    """Any failure of rowmill's; of this class itself: a failure of the system, or one that is a bug."""

    # KeyError, which is a base of FeatureError, would show the text in quotes.
    __str__ = Exception.__str__


class InputError(Error, ValueError):
    """What was given contradicts itself, the schema, or the limits. Nothing was sent."""


class DtypeError(InputError, TypeError):
    """An array or tensor of another type than is wanted. Nothing is converted silently."""


class FeatureError(InputError, KeyError):
    """Features that are missing, not in the schema, or named twice."""


class ConnectError(Error, ConnectionError):
    """No dataplane answers at the URL, or it refuses the connection."""


class ClosedError(Error, ConnectionError):
    """The connection has ended, by either side, or is that of a parent process."""


class BusyError(Error):
    """All credits, all room for ids, or all room for results are in use."""


class WaitTimeout(Error, TimeoutError):
    """The time given for waiting is over. The request goes on; its memory is not free before it has ended."""


class ReplyTimeout(Error, TimeoutError):
    """The dataplane did not answer a call that is no lookup within ``reply_limit``. The connection goes on."""


class DeviceError(Error, RuntimeError):
    """A call to a GPU's driver has failed, or a stream went on without its result, in whose place there are NaNs."""


class RefusedError(Error):
    """The dataplane refused a request, or gave it up.

    Attributes:
        status (str): The protocol's name for the reason, such as ``"IdOutOfRange"``.
        code (int): Its number in the protocol.
        feature (str | None): The feature in which the reason lies.
        position (int | None): The bag or id among those of the feature, counted from 0 over the batch.
    """

    def __init__(
        self,
        text: str,
        status: str = "",
        code: int = 0,
        feature: str | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(text, status, code, feature, position)
        self.status = status
        self.code = code
        self.feature = feature
        self.position = position

    def __str__(self) -> str:
        return str(self.args[0])


class IdError(RefusedError, IndexError):
    """An id is not in its table: out of range, negative, or not among a hashed table's."""


class OverloadedError(RefusedError):
    """The dataplane has no free slot for the request; try again after a pause."""


class RowUnavailableError(RefusedError):
    """A row that the dataplane does not hold could not be fetched from where its table lies; try again, unless it is damaged there."""


class ExpiredError(RefusedError, TimeoutError):
    """The request's deadline passed before the dataplane was done."""


class CancelledError(RefusedError):
    """The request was cancelled."""
