//! What a dataplane and the control plane tell each other.
//!
//! A dataplane dials the control plane, and speaks HTTP/1.1 to it. `NAME` is what the dataplane is called in its configuration, of
//! [`is_name`]'s characters:
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/dataplanes/NAME/report`, once a second | [`Report`], JSON | 204 |
//! | `POST /v1/dataplanes/NAME/samples`, while there are some | [`Samples`], [`MEDIA_TYPE`] | 204 |
//! | `GET /v1/dataplanes/NAME/policy?instance=I&after=E.V` | | 200 and [`Policy`] where one is published that is newer than version V of epoch E; 204 after [`HOLD`] without one |
//!
//! Every answer says whose it is in the header [`CONTROL_HEADER`]: behind one address there may be two by mistake, and connections last. Every
//! refusal is a JSON object whose `error` is a sentence. A dataplane that is refused, or reaches nobody, goes on with the policy
//! that it has, and tries again.
#![forbid(unsafe_code)]

mod policy;
mod report;
mod samples;

pub use policy::{Admission, GenerationsPolicy, Order, Policy, TablePolicy};
pub use report::{Applied, Placement, Report, TableReport};
pub use samples::{
    BODY_MAX, Decoded, MEDIA_TYPE, Sample, Samples, SamplesError, TABLES_MAX, TableSamples,
};

/// How long a policy is waited for before the answer is that there is none: less than what proxies on the way mostly wait.
pub const HOLD: core::time::Duration = core::time::Duration::from_secs(25);
/// The header of answers with the name of the control plane, as its policies have it.
pub const CONTROL_HEADER: &str = "rowmill-control";
/// Longest name of a dataplane, in bytes.
pub const NAME_MAX: usize = 64;

/// Whether something may be the name of a dataplane: letters, digits, `.`, `_` and `-`, of which neither `.` nor `..` is one.
pub fn is_name(name: &str) -> bool {
    let is_part = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_part) && !matches!(name, "." | "..")
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_parts_of_paths() {
        for name in ["a", "dpu-7.rack_3", &"x".repeat(64)] {
            assert!(super::is_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a b", "ä", "a%2e", &"x".repeat(65)] {
            assert!(!super::is_name(name), "{name}");
        }
    }
}
