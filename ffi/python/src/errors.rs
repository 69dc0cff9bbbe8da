//! Failures as Python exceptions, whose classes are in `rowmill/errors.py`.

use pyo3::prelude::*;
use rowmill_client::{BatchError, ClientError, Failure, NOWHERE, PortError, Refusal, Status, cuda};

/// A class of `rowmill.errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Error,
    Input,
    Dtype,
    Feature,
    Connect,
    Closed,
    Busy,
    WaitTimeout,
    ReplyTimeout,
    Device,
    Refused,
    Id,
    Overloaded,
    RowUnavailable,
    Expired,
    Cancelled,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Class::Error => "Error",
            Class::Input => "InputError",
            Class::Dtype => "DtypeError",
            Class::Feature => "FeatureError",
            Class::Connect => "ConnectError",
            Class::Closed => "ClosedError",
            Class::Busy => "BusyError",
            Class::WaitTimeout => "WaitTimeout",
            Class::ReplyTimeout => "ReplyTimeout",
            Class::Device => "DeviceError",
            Class::Refused => "RefusedError",
            Class::Id => "IdError",
            Class::Overloaded => "OverloadedError",
            Class::RowUnavailable => "RowUnavailableError",
            Class::Expired => "ExpiredError",
            Class::Cancelled => "CancelledError",
        }
    }

    fn of_status(status: Status) -> Class {
        match status {
            Status::IdOutOfRange | Status::IdNegative | Status::UnknownId => Class::Id,
            Status::Busy => Class::Overloaded,
            Status::RowUnavailable => Class::RowUnavailable,
            Status::Expired => Class::Expired,
            Status::Cancelled => Class::Cancelled,
            _ => Class::Refused,
        }
    }
}

/// The class of the exception for each status of the protocol, by their names.
///
/// Returns:
///     list[tuple[str, str]]: Without that of requests that have their result.
#[pyfunction]
pub(crate) fn _status_classes() -> Vec<(&'static str, &'static str)> {
    let failures = Status::ALL.iter().filter(|&&status| status != Status::Ok);
    failures
        .map(|&status| (status.name(), Class::of_status(status).name()))
        .collect()
}

/// What a refusal tells beside its text.
#[derive(Clone, Debug)]
struct Place {
    status: Status,
    feature: Option<String>,
    position: Option<u32>,
}

/// A failure in words.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    class: Class,
    text: String,
    place: Option<Box<Place>>,
}

impl Told {
    /// A new exception of it.
    pub(crate) fn exception<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let class = py.import("rowmill.errors")?.getattr(self.class.name())?;
        match &self.place {
            None => class.call1((&self.text,)),
            Some(place) => class.call1((
                &self.text,
                place.status.name(),
                place.status as u16,
                &place.feature,
                place.position,
            )),
        }
    }

    /// The same, to be raised.
    pub(crate) fn raise(&self, py: Python<'_>) -> PyErr {
        match self.exception(py) {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        }
    }
}

/// A failure that becomes an exception.
#[derive(Debug)]
pub(crate) enum Fault {
    Told(Told),
    /// Python's own, such as that of a signal's handler.
    Raised(PyErr),
}

pub(crate) type Outcome<T> = Result<T, Fault>;

impl Fault {
    pub(crate) fn new(class: Class, text: impl Into<String>) -> Fault {
        Fault::Told(Told {
            class,
            text: text.into(),
            place: None,
        })
    }

    /// Input that contradicts itself, the schema or a limit.
    pub(crate) fn input(text: impl Into<String>) -> Fault {
        Fault::new(Class::Input, text)
    }

    /// An error of the client; `names` are those of the features or columns that it counts.
    pub(crate) fn of(error: ClientError, names: &[String]) -> Fault {
        let text = sentence(&error);
        match error {
            ClientError::Batch(error) => Fault::input(named(text, feature_of(&error), names)),
            ClientError::Port(PortError::Refused { refusal, .. }) => Fault::Told(Told {
                text,
                ..refused(refusal, names)
            }),
            error => Fault::new(class_of(&error), text),
        }
    }

    /// Why there is no connection to `url`.
    pub(crate) fn of_connecting(error: ClientError, url: &str) -> Fault {
        let text = match &error {
            ClientError::Port(PortError::System { call, source }) => format!(
                "cannot connect to {url}: {call} failed: {source}; see whether this machine has what it takes: rdma:// needs an RDMA device, and /dev/infiniband/rdma_cm"
            ),
            ClientError::Port(PortError::Unsupported { .. }) => {
                format!("cannot connect to {url}: {error}; see what this machine's device can do")
            }
            ClientError::Port(PortError::Protocol(what)) => format!(
                "cannot connect to {url}: what listens there answers as no rowmilld of this version does ({what}); see what it is"
            ),
            ClientError::Port(PortError::Refused { .. }) => {
                format!("cannot connect to {url}: {error}; {}", advice(&error))
            }
            ClientError::Closed | ClientError::Lost { .. } => format!(
                "cannot connect to {url}: {error} while it was being made; see what listens there, and its log"
            ),
            _ => return Fault::of(error, &[]),
        };
        Fault::new(Class::Connect, text)
    }

    /// Why a request has no result.
    pub(crate) fn of_failure(failure: Failure, names: &[String]) -> Fault {
        match failure {
            Failure::Refused(refusal) => Fault::Told(refused(refusal, names)),
            Failure::Disconnected => Fault::new(Class::Closed, failure.to_string()),
        }
    }

    /// The same, with what it is about before its text.
    pub(crate) fn within(mut self, what: &str) -> Fault {
        if let Fault::Told(told) = &mut self {
            told.text.insert_str(0, what);
        }
        self
    }

    /// The failure in words, to be kept: an exception that is kept would keep the frames that it was raised in.
    pub(crate) fn told(self, py: Python<'_>) -> Told {
        match self {
            Fault::Told(told) => told,
            Fault::Raised(error) => Told {
                class: Class::Error,
                text: error.value(py).to_string(),
                place: None,
            },
        }
    }
}

/// The failure of a part of a batch, with an id's position counted over the whole batch: `before` are the ids of each feature that come
/// before the part.
pub(crate) fn counted_from(failure: Failure, before: &[u64]) -> Failure {
    let Failure::Refused(mut refusal) = failure else {
        return failure;
    };
    if Class::of_status(refusal.status) == Class::Id
        && refusal.index != NOWHERE
        && let Some(&before) = before.get(refusal.feature as usize)
    {
        // One less than what means nowhere.
        let most = u64::from(NOWHERE - 1);
        refusal.index = before.saturating_add(refusal.index.into()).min(most) as u32;
    }
    Failure::Refused(refusal)
}

fn refused(refusal: Refusal, names: &[String]) -> Told {
    let Refusal {
        status,
        feature,
        index,
    } = refusal;
    let name = names.get(feature as usize).cloned();
    let position = Some(index).filter(|&at| name.is_some() && at != NOWHERE);
    let mut text = named(refusal.to_string(), Some(feature as usize), names);
    if status == Status::IdNegative {
        text += "; of unsigned ids those with the highest bit count as negative";
    }
    let place = Place {
        status,
        feature: name,
        position,
    };
    Told {
        class: Class::of_status(status),
        text,
        place: Some(Box::new(place)),
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> PyErr {
        match fault {
            Fault::Told(told) => Python::attach(|py| told.raise(py)),
            Fault::Raised(error) => error,
        }
    }
}

impl From<PyErr> for Fault {
    fn from(error: PyErr) -> Fault {
        Fault::Raised(error)
    }
}

/// An error in Python's terms, with its cause.
fn sentence(error: &ClientError) -> String {
    match error {
        ClientError::NoCredit => {
            "no credit: as many requests are in flight as the dataplane has granted; take results of futures or drop futures, or connect with more credits".into()
        }
        ClientError::NoSourceSpace => {
            "no room for the ids: those of requests in flight fill it; take results of futures, or connect with more source_bytes".into()
        }
        ClientError::Port(PortError::System { source, .. }) => format!("{error}: {source}"),
        error => error.to_string(),
    }
}

/// What to do where a dataplane refuses a connection.
fn advice(refused: &ClientError) -> &'static str {
    let ClientError::Port(PortError::Refused { refusal, .. }) = refused else {
        return "see its log";
    };
    match refusal.status {
        Status::LimitReached | Status::Busy | Status::Draining => {
            "close clients that are not needed, raise limits.connections of its configuration, or try again later"
        }
        Status::UnsupportedVersion | Status::Unsupported | Status::Malformed => {
            "install the package in the version of the dataplane"
        }
        _ => "see its log",
    }
}

fn class_of(error: &ClientError) -> Class {
    match error {
        ClientError::Endpoint { .. }
        | ClientError::Port(
            PortError::Connect { .. } | PortError::Listen { .. } | PortError::Endpoint { .. },
        ) => Class::Connect,
        ClientError::Closed
        | ClientError::GpuClosed
        | ClientError::Lost { .. }
        | ClientError::Forked
        | ClientError::Stopped { .. }
        | ClientError::Port(PortError::Closed | PortError::Lost { .. }) => Class::Closed,
        ClientError::NoCredit
        | ClientError::NoSourceSpace
        | ClientError::OutputInUse
        | ClientError::ResultsHeld { .. }
        | ClientError::RegionFull { .. }
        | ClientError::RegionInUse { .. }
        | ClientError::TargetInUse { .. } => Class::Busy,
        ClientError::Batch(_)
        | ClientError::FeatureCount { .. }
        | ClientError::Weights { .. }
        | ClientError::TooLarge { .. }
        | ClientError::TargetPlace { .. }
        | ClientError::TargetMisaligned { .. }
        | ClientError::AddressMisaligned { .. }
        | ClientError::TargetTooSmall { .. }
        | ClientError::NotInResult { .. }
        | ClientError::OtherClient { .. }
        | ClientError::NoTables
        | ClientError::UnknownTicket => Class::Input,
        ClientError::Cuda(cuda::Error::NotDeviceMemory { .. } | cuda::Error::Empty) => Class::Input,
        ClientError::Cuda(_)
        | ClientError::NoResult(_)
        | ClientError::NoDirectWay { .. }
        | ClientError::NoWay { .. }
        | ClientError::Port(PortError::Unsupported { .. }) => Class::Device,
        ClientError::Port(PortError::Refused { refusal, .. }) => Class::of_status(refusal.status),
        ClientError::NoAnswer { .. } | ClientError::Port(PortError::NoAnswer { .. }) => {
            Class::ReplyTimeout
        }
        ClientError::Interrupted
        | ClientError::Port(
            PortError::Interrupted | PortError::Protocol(_) | PortError::System { .. },
        ) => Class::Error,
    }
}

/// The feature or column that an error counts.
fn feature_of(error: &BatchError) -> Option<usize> {
    match *error {
        BatchError::Bags { .. } | BatchError::TooManyFeatures => None,
        BatchError::LengthCount { feature, .. }
        | BatchError::OffsetsFall { feature, .. }
        | BatchError::NegativeLength { feature, .. }
        | BatchError::NoColumn { feature, .. }
        | BatchError::LengthSum { feature, .. }
        | BatchError::LongBag { feature, .. }
        | BatchError::WeightCount { feature, .. }
        | BatchError::MixedWidths { feature }
        | BatchError::TooManyIds { feature } => Some(feature),
    }
}

/// The text with the feature's name in the place of its number.
fn named(text: String, feature: Option<usize>, names: &[String]) -> String {
    let name = feature.and_then(|at| Some((at, names.get(at)?)));
    let renamed = name.and_then(|(at, name)| {
        let rest = text.strip_prefix(&format!("feature {at}"))?;
        Some(format!("feature `{name}`{rest}"))
    });
    renamed.unwrap_or(text)
}
