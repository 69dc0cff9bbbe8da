//! A service for the suite.

use std::sync::Mutex;

use rowmill_wire::control::{TableEntry, Welcome};
use rowmill_wire::{Refusal, Schema, SplitRule, Status};

use crate::{ConnId, Service};

/// Tables that [`Answers`] lists: more than one page, and the last page not full.
pub const TABLES: usize = 300;

/// Welcomes everybody but a client named `nobody`, binds schemas but of a table named `missing`, and
/// remembers which connections ended.
#[derive(Debug)]
pub struct Answers {
    lanes: u16,
    gone: Mutex<Vec<ConnId>>,
}

impl Answers {
    /// For a port with `lanes` lanes.
    pub fn new(lanes: u16) -> Answers {
        Answers {
            lanes,
            gone: Mutex::new(Vec::new()),
        }
    }

    /// The connections that ended, in order.
    pub fn gone(&self) -> Vec<ConnId> {
        self.gone.lock().expect("no panic while locked").clone()
    }
}

impl Service for Answers {
    fn welcome(&self, client: &str) -> Result<Welcome, (Refusal, String)> {
        if client == "nobody" {
            return Err((Refusal::whole(Status::Draining), "not today".to_owned()));
        }
        Ok(Welcome {
            model: "conformance".to_owned(),
            generation: 7,
            split: SplitRule {
                lanes: self.lanes,
                min_bags: 1,
            },
            credits: u16::MAX,
            completions: 1,
            max_ids: 1000,
            max_lengths: 1000,
            max_region: 0,
        })
    }

    fn tables(&self) -> Vec<TableEntry> {
        (0..TABLES)
            .map(|i| TableEntry {
                name: format!("table-{i}"),
                rows: i as u64,
                dim: 4,
                format: 0,
                kind: 0,
            })
            .collect()
    }

    fn bind(&self, _conn: ConnId, schema: Schema) -> Result<u32, (Refusal, String)> {
        match schema.features.iter().position(|f| f.table == "missing") {
            None => Ok(schema.features.len() as u32),
            Some(i) => Err((
                Refusal::feature(Status::UnknownTable, i as u32),
                "no such table".to_owned(),
            )),
        }
    }

    fn gone(&self, conn: ConnId) {
        self.gone.lock().expect("no panic while locked").push(conn);
    }
}
