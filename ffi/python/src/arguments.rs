//! Numbers that callers give, within their ranges.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use rowmill_client::RequestOptions;

use crate::errors::{Fault, Outcome};

/// A whole number in its range.
pub(crate) fn whole<T>(what: &str, given: i128, range: RangeInclusive<T>) -> Outcome<T>
where
    T: TryFrom<i128> + PartialOrd + Display,
{
    let number = T::try_from(given).ok();
    number
        .filter(|number| range.contains(number))
        .ok_or_else(|| {
            let (least, most) = range.into_inner();
            let text = format!("{what} of {given}; give a whole number from {least} to {most}");
            Fault::input(text)
        })
}

/// Refuses a name that the protocol has no room for.
pub(crate) fn name(what: &str, given: &str) -> Outcome<()> {
    let (bytes, most) = (given.len(), rowmill_client::MAX_NAME);
    if bytes <= most {
        return Ok(());
    }
    let text = format!("{what} of {bytes} bytes in UTF-8; give one of at most {most}");
    Err(Fault::input(text))
}

/// A limit of time in seconds, which a caller has to give.
pub(crate) fn seconds(what: &str, given: f64) -> Outcome<Duration> {
    limit(what, given, "give 0 or more")
}

/// The time that a caller waits, who need not give it.
pub(crate) fn timeout(given: Option<f64>) -> Outcome<Option<Duration>> {
    let advice = "give 0 or more, or None for no limit";
    let limit = given.map(|given| limit("timeout", given, advice));
    limit.transpose()
}

/// What a caller asks of a request.
pub(crate) fn request_options(generation: i64, deadline: Option<f64>) -> Outcome<RequestOptions> {
    let advice = "give more than 0, or None for no limit";
    let remaining = deadline.map(|given| match limit("deadline", given, advice) {
        // A request would have expired before it is received.
        Ok(Duration::ZERO) => Err(out_of_time("deadline", given, advice)),
        limit => limit,
    });
    let generation = u64::try_from(generation).map_err(|_| {
        let text =
            format!("generation of {generation}; give 0 for the newest, or a generation's number");
        Fault::input(text)
    })?;
    Ok(RequestOptions {
        remaining: remaining.transpose()?,
        generation,
        ..RequestOptions::default()
    })
}

fn limit(what: &str, given: f64, advice: &str) -> Outcome<Duration> {
    Duration::try_from_secs_f64(given).map_err(|_| out_of_time(what, given, advice))
}

fn out_of_time(what: &str, given: f64, advice: &str) -> Fault {
    Fault::input(format!("{what} of {given} seconds; {advice}"))
}
