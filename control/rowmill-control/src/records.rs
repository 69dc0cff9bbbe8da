//! What is kept in the state.

use rowmill_admission::{ModelGenerations, Settings};
use rowmill_link::Policy;
use rowmill_state::Record;
use serde::{Deserialize, Serialize};

/// Who this control plane is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Drawn once with the state, 32 hexadecimal digits.
    pub control: String,
    /// How many epochs it is ahead of the state's own count: dataplanes that had been told more than the state knows were taken over.
    pub ahead: u64,
}

impl Record for Identity {
    const KIND: &'static str = "identity";
    const VERSION: u32 = 1;
}

/// What an operator wants of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// The table's model.
    pub model: String,
    /// Its name.
    pub table: String,
    /// See there.
    pub settings: Settings,
}

impl Record for Wanted {
    const KIND: &'static str = "settings";
    const VERSION: u32 = 1;
}

impl Wanted {
    /// The key under which it lies: the lengths tell where the model's name ends, whatever is in it.
    pub fn key(model: &str, table: &str) -> String {
        format!("{}:{model}:{table}", model.len())
    }
}

/// Which generations of a model are wanted; its key is the model's name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generations {
    /// See there.
    pub wanted: ModelGenerations,
}

impl Record for Generations {
    const KIND: &'static str = "generations";
    const VERSION: u32 = 1;
}

/// What a dataplane was told last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The model that it served then.
    #[serde(default)]
    pub model: Option<String>,
    /// See there.
    pub policy: Policy,
}

impl Record for Told {
    const KIND: &'static str = "policy";
    const VERSION: u32 = 1;
}

/// What a dataplane told of itself last; its key is the dataplane's name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Served {
    /// The model that it serves.
    pub model: String,
    /// The generation of it, where none is named.
    pub newest: Option<u64>,
}

impl Record for Served {
    const KIND: &'static str = "served";
    const VERSION: u32 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_different_tables_differ() {
        assert_ne!(Wanted::key("a", "b:c"), Wanted::key("a:b", "c"));
        assert_eq!(Wanted::key("a", "b"), "1:a:b");
    }
}
