//! What an operator wants of a table.

use rowmill_link::Admission;
use serde::{Deserialize, Serialize};

/// Bounds of a table's share, in each dataplane that serves it, and which rows come into it. What isn't given is left to the planner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Settings {
    /// Bytes of the arena that it gets in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_bytes: Option<u64>,
    /// Bytes that it gets at most. The same as `min_bytes`: its share is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Part of its share, from 0 to 0.7, that is kept for the rows that were sampled most often: they are never evicted. They are 2,048 of a
    /// table at most (100,000 of all tables of a dataplane), and only rows that are sampled: which ones follows from a hash, and `rate` of the table says how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_share: Option<f64>,
    /// Which rows that were missed come into the cache. `pinned`, as for a table that is scanned: none but the pinned ones, once some of these are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
}

/// Settings that can't be.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// The least is more than the most.
    #[error("min_bytes is {min} and max_bytes is {max}: give a min_bytes that is not more")]
    Order {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// The pinned share is no part.
    #[error(
        "pinned_share is {0}: give a part from 0 to 0.7, since the rest of the share has to take what is not pinned"
    )]
    Part(f64),
    /// No row would ever come.
    #[error(
        "admission is pinned, and no part of the share is: give a pinned_share of more than 0, or no row would come into the cache"
    )]
    NothingPinned,
}

impl Settings {
    /// Largest part that is pinned: a dataplane pins nothing of a table where it would be more than three quarters of its slots.
    pub const PINNED_SHARE_MAX: f64 = 0.7;

    /// Whether they can be.
    ///
    /// # Errors
    /// [`SettingsError`] where they can't.
    pub fn check(&self) -> Result<(), SettingsError> {
        if let (Some(min), Some(max)) = (self.min_bytes, self.max_bytes)
            && min > max
        {
            return Err(SettingsError::Order { min, max });
        }
        match self.pinned_share {
            Some(part) if !(0.0..=Self::PINNED_SHARE_MAX).contains(&part) => {
                Err(SettingsError::Part(part))
            }
            _ if self.admission == Some(Admission::Pinned) && !self.pins() => {
                Err(SettingsError::NothingPinned)
            }
            _ => Ok(()),
        }
    }

    /// The part of the share that is for pinned rows, where no others come.
    pub(super) fn only_pinned(&self) -> Option<f64> {
        let part = self.pinned_share.filter(|_| self.pins());
        part.filter(|_| self.admission == Some(Admission::Pinned))
    }

    /// Whether rows are to be pinned.
    pub(super) fn pins(&self) -> bool {
        self.pinned_share.is_some_and(|part| part > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_is_refused() {
        let of = |text: &str| serde_json::from_str::<Settings>(text).unwrap().check();
        assert_eq!(of("{}"), Ok(()));
        assert_eq!(
            of(r#"{"min_bytes":5,"max_bytes":5,"pinned_share":0.7}"#),
            Ok(())
        );
        let order = SettingsError::Order { min: 6, max: 5 };
        assert_eq!(of(r#"{"min_bytes":6,"max_bytes":5}"#), Err(order));
        for part in [-0.1, 0.71, f64::NAN] {
            let settings = Settings {
                pinned_share: Some(part),
                ..Settings::default()
            };
            assert!(
                matches!(settings.check(), Err(SettingsError::Part(_))),
                "{part}"
            );
        }
        let nothing = Err(SettingsError::NothingPinned);
        assert_eq!(of(r#"{"admission":"pinned"}"#), nothing);
        assert_eq!(of(r#"{"admission":"pinned","pinned_share":0}"#), nothing);
        assert_eq!(of(r#"{"admission":"pinned","pinned_share":0.5}"#), Ok(()));
        assert_eq!(of(r#"{"admission":"built"}"#), Ok(()));
        assert!(serde_json::from_str::<Settings>(r#"{"min":5}"#).is_err());
        assert!(serde_json::from_str::<Settings>(r#"{"admission":"none"}"#).is_err());
    }
}
