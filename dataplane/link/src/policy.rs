//! What the control plane wants of a dataplane.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a policy stands among all that were published: by the control plane's start, then by what it counts. A dataplane takes
/// only what is larger than what it has of the same control plane.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Order {
    /// Starts of the control plane with one state, from 1 on.
    pub epoch: u64,
    /// Counted from 1 in each epoch.
    pub version: u64,
}

/// As `EPOCH.VERSION`.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.version)
    }
}

/// It is not `EPOCH.VERSION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an order is EPOCH.VERSION, two numbers")]
pub struct NoOrder;

impl FromStr for Order {
    type Err = NoOrder;

    fn from_str(text: &str) -> Result<Order, NoOrder> {
        let (epoch, version) = text.split_once('.').ok_or(NoOrder)?;
        let number = |digits: &str| {
            let plain = digits.bytes().all(|c| c.is_ascii_digit());
            digits.parse().ok().filter(|_| plain).ok_or(NoOrder)
        };
        Ok(Order {
            epoch: number(epoch)?,
            version: number(version)?,
        })
    }
}

/// A policy as it is published: it is never changed, but followed by another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Policy {
    /// Who publishes: drawn once with the control plane's state. A dataplane that follows one takes none of another, whatever its order,
    /// until the one that it follows has been silent for 30 s.
    pub control: String,
    /// See there.
    pub order: Order,
    /// What is wanted of each cached table. Of what isn't named nothing is changed; a name that the dataplane has no cached table of
    /// is told in its report.
    pub tables: Vec<TablePolicy>,
    /// Which generations of the model are held, or none where that is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generations: Option<GenerationsPolicy>,
}

/// Which generations of its model a dataplane is to hold. It comes to that by itself, whatever it begins with: it loads what it does not
/// hold, serves the newest once it is held, and unloads what is not named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GenerationsPolicy {
    /// Their numbers, two at most.
    pub held: Vec<u64>,
    /// The one of them that requests get which name none.
    pub newest: u64,
    /// How often that was wished for again: what could not be done is tried at once when this is another number.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tries: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde has it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What is wanted of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TablePolicy {
    /// Its name.
    pub table: String,
    /// Its share of the arena in bytes, or none where it is to stay as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
    /// Rows of it that are sampled, of 2^32: those whose place is less ([`Sample::place`](crate::Sample::place)). 0: none.
    #[serde(default)]
    pub threshold: u32,
    /// Whether rows that were missed come into the cache.
    #[serde(default)]
    pub admission: Admission,
    /// Rows that are never evicted, and fetched where they are not there, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<u32>,
}

/// Which rows that were missed come into the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Admission {
    /// Those that the dataplane's own policy takes for worth more than what they would replace.
    #[default]
    Built,
    /// None but those that are pinned: what is there stays.
    Pinned,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_are_written() {
        let order = Order {
            epoch: 3,
            version: 14,
        };
        assert_eq!(order.to_string().parse(), Ok(order));
        for text in [
            "",
            "3",
            "3.",
            ".1",
            "+3.1",
            "3.1.1",
            "18446744073709551616.1",
        ] {
            assert_eq!(text.parse::<Order>(), Err(NoOrder), "{text}");
        }
        assert!("2.9".parse::<Order>().unwrap() < "10.1".parse().unwrap());
    }

    #[test]
    fn what_is_not_named_is_left_as_it_is() {
        let text =
            r#"{"control":"c","order":{"epoch":1,"version":2},"tables":[{"table":"a","later":1}]}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        let [table] = &policy.tables[..] else {
            panic!("{policy:?}");
        };
        assert_eq!((table.cache_bytes, table.threshold), (None, 0));
        assert_eq!(table.admission, Admission::Built);
        assert_eq!(table.pinned, [0; 0]);
    }
}
