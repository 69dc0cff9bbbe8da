//! How many file descriptors there may be, and how many clients that is enough for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::plan::Choice;

/// Descriptors that are there whatever clients do: standard streams (3), the endpoint's socket and lock,
/// the control thread's epoll and bell, the signal thread's socket pair, the guard of regions, the admin
/// listener and its 32 visitors (`admin.rs`), 32 connections that have not said hello (`GREETING_MAX` in
/// the port), and 16 for what is opened for a moment.
const FIXED: u64 = 3 + 2 + 2 + 2 + 1 + 33 + 32 + 16;
/// Of each lane: its epoll and its bell.
const OF_LANE: u64 = 2;
/// Of each client beside a doorbell for each lane: its stream and its wake-up socket.
const OF_CLIENT: u64 = 2;
/// What clients can send in one message before it is looked at, and what can wait to be closed.
const SENT: u64 = 253 + 512;

/// Raises the soft limit of descriptors to the hard one: rowmilld uses no select(2), the one reason for
/// a lower soft limit. Gives what is allowed now; `None` for any number.
pub fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

/// How many of `clients` can be served on `lanes` with `limit` descriptors, and what to say of it.
///
/// # Errors
/// Where not even one can.
pub fn fit(limit: Option<u64>, clients: u16, lanes: usize) -> Result<(u16, Choice), String> {
    let lanes = lanes as u64;
    let (fixed, each) = (FIXED + OF_LANE * lanes, OF_CLIENT + lanes);
    let needed = fixed + SENT + each * u64::from(clients);
    let Some(limit) = limit.filter(|&limit| limit < needed) else {
        let allowed = limit.map_or("any number".into(), |limit| limit.to_string());
        let why = format!("{clients} clients on {lanes} workers need at most {needed}");
        return Ok((clients, Choice::new("file descriptors", allowed, why)));
    };
    // What is left for descriptors that clients send is the first thing to go: whoever sends some that
    // find no room is refused.
    let fitting = (limit.saturating_sub(fixed) / each).min(clients.into()) as u16;
    let raise =
        "raise the limit (`ulimit -Hn`, LimitNOFILE of systemd), or lower limits.connections";
    if fitting == 0 {
        let least = fixed + each;
        return Err(format!(
            "too few file descriptors: {limit} are allowed, one client on {lanes} workers needs {least}, \
             and {clients} clients need {needed}; {raise}"
        ));
    }
    let why = format!(
        "{clients} clients on {lanes} workers need {needed}; {fitting} of them are let in at a time, and \
         clients that send many descriptors are refused; {raise}"
    );
    Ok((
        fitting,
        Choice::warning("file descriptors", limit.to_string(), why),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_fitted_to_the_limit() {
        let full = FIXED + SENT + 2 + 256 * 3;
        for (limit, clients, warns) in [
            (None, 256, false),
            (Some(1 << 20), 256, false),
            (Some(full), 256, false),
            (Some(full - 1), 256, true),
            (Some(512), 139, true),
            (Some(FIXED + 2 + 3), 1, true),
        ] {
            let (fitting, choice) = fit(limit, 256, 1).unwrap();
            assert_eq!((fitting, choice.warning), (clients, warns), "{limit:?}");
        }
        let error = fit(Some(FIXED + 2 + 2), 256, 1).unwrap_err();
        assert!(error.contains("too few file descriptors: "), "{error}");
        let (fitting, choice) = fit(Some(20_000), 1024, 100).unwrap();
        assert!(fitting < 200 && choice.warning, "{choice:?}");
    }
}
