//! A reader as its exporter knows it, and what is exported.

use std::net::SocketAddr;

use rowmill_arena::FrozenBytes;
use rowmill_verbs::{Connection, Exported, Immutable, QueuePair};

use super::exporter::Offer;
use super::lease::Term;
use super::message::{Identity, Message};
use super::talk::Talk;
use crate::rdma::config::ConnectionParameters;
use crate::rdma::private_data::SessionId;

/// Rows of a table.
pub(super) struct Rows(pub(super) FrozenBytes);

// SAFETY: a frozen arena is mapped read-only and never changes; its bytes stay where they are as long as it is held, which the value does.
unsafe impl Immutable for Rows {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A table that is exported, and what may be asked of it.
pub(super) struct Table {
    pub(super) identity: Identity,
    pub(super) rows: Exported<Rows>,
}

/// A generation that is exported.
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) tables: Vec<Table>,
    /// Tables of it that are not, and why.
    pub(super) left_out: Vec<(String, String)>,
    /// It is to go when nobody has a lease on it.
    pub(super) is_ending: bool,
}

/// A lane. Dropped, its reader READs no more: the queue pair goes before the connection.
pub(super) struct Lane {
    pub(super) _qp: QueuePair<()>,
    pub(super) connection: Connection,
}

/// A session. Its lanes are dropped first.
pub(super) struct Session {
    pub(super) lanes: Vec<Lane>,
    pub(super) id: SessionId,
    pub(super) peer: Option<SocketAddr>,
    pub(super) term: Term,
    pub(super) agreed: ConnectionParameters,
    /// The generations that it was granted tables of.
    pub(super) reads: Vec<u64>,
    pub(super) talk: Talk,
    pub(super) connection: Connection,
}

/// The answer to a question for a table.
pub(super) fn open(generations: &[Generation], number: u32, wanted: &Identity) -> (Message, bool) {
    match find(generations, wanted) {
        Ok(table) => {
            let remote = table.rows.remote();
            let granted = Message::Granted {
                number,
                address: remote.address,
                key: remote.key,
                bytes: table.rows.len() as u64,
            };
            (granted, true)
        }
        Err(text) => (Message::Refused { number, text }, false),
    }
}

fn find<'g>(generations: &'g [Generation], wanted: &Identity) -> Result<&'g Table, String> {
    let held = generations.iter().filter(|held| !held.is_ending);
    let Some(held) = held.clone().find(|held| held.number == wanted.generation) else {
        let numbers: Vec<String> = held.map(|held| held.number.to_string()).collect();
        return Err(format!(
            "generation {} is not exported, which has {}",
            wanted.generation,
            numbers.join(" and ")
        ));
    };
    if let Some((_, why)) = held.left_out.iter().find(|(name, _)| *name == wanted.table) {
        return Err(why.clone());
    }
    let table = held
        .tables
        .iter()
        .find(|table| table.identity.table == wanted.table);
    let Some(table) = table else {
        return Err(format!("there is no table {}", wanted.table));
    };
    match difference(&table.identity, wanted) {
        None => Ok(table),
        Some(what) => Err(format!("it is another table: {what}")),
    }
}

/// What of a table the exporter has otherwise.
fn difference(own: &Identity, wanted: &Identity) -> Option<String> {
    let differs = |what: &str, own: u64, wanted: u64| {
        (own != wanted).then(|| format!("{what} is {own} here, and {wanted} there"))
    };
    if own.model != wanted.model {
        return Some(format!(
            "the model is {} here, and {} there",
            own.model, wanted.model
        ));
    }
    differs("rows", own.rows, wanted.rows)
        .or_else(|| differs("the stride", own.stride.into(), wanted.stride.into()))
        .or_else(|| differs("the dim", own.dim.into(), wanted.dim.into()))
        .or_else(|| differs("the format", own.format.into(), wanted.format.into()))
        .or_else(|| {
            (own.fingerprint != wanted.fingerprint)
                .then(|| "the checksums of the generation's files differ".into())
        })
}

/// What is to be exported, registered; tables that can't be are left out with the reason.
pub(super) fn register(domain: &rowmill_verbs::ProtectionDomain, offer: Offer) -> Generation {
    let mut generation = Generation {
        number: offer.generation,
        tables: Vec::new(),
        left_out: offer.left_out,
        is_ending: false,
    };
    for table in offer.tables {
        let name = table.identity.table.clone();
        match Exported::new(domain, Rows(table.rows)) {
            Ok(rows) => generation.tables.push(Table {
                identity: table.identity,
                rows,
            }),
            Err((error, _)) => {
                let why = format!(
                    "its memory can't be registered there: {}",
                    crate::rdma::failure::in_full(&error)
                );
                tracing::warn!("table {name} is not exported: {why}");
                generation.left_out.push((name, why));
            }
        }
    }
    generation
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            model: "demo".into(),
            generation: 3,
            fingerprint: 77,
            table: "items".into(),
            rows: 1000,
            stride: 512,
            dim: 128,
            format: 0,
        }
    }

    #[test]
    fn only_the_very_table_is_granted() {
        let own = identity();
        assert_eq!(difference(&own, &own), None);
        type Change = fn(&mut Identity);
        let others: [(Change, &str); 6] = [
            (|other| other.model = "x".into(), "model"),
            (|other| other.rows = 999, "rows"),
            (|other| other.stride = 256, "stride"),
            (|other| other.dim = 64, "dim"),
            (|other| other.format = 1, "format"),
            (|other| other.fingerprint = 78, "checksums"),
        ];
        for (change, what) in others {
            let mut other = identity();
            change(&mut other);
            let said = difference(&own, &other).expect("a difference");
            assert!(said.contains(what), "{said}");
        }
    }

    #[test]
    fn what_is_not_exported_is_refused_with_the_reason() {
        let cached = "it is listed in [[tables]] there".to_owned();
        let held = |number, is_ending| Generation {
            number,
            tables: Vec::new(),
            left_out: vec![("items".into(), cached.clone())],
            is_ending,
        };
        let refused =
            |generations: &[Generation], wanted: &Identity| match open(generations, 5, wanted) {
                (Message::Refused { number: 5, text }, false) => text,
                other => panic!("{other:?}"),
            };
        assert_eq!(refused(&[held(3, false)], &identity()), cached);
        let said = refused(&[held(2, false), held(3, true)], &identity());
        assert_eq!(said, "generation 3 is not exported, which has 2");
        let mut other = identity();
        other.table = "places".into();
        assert_eq!(
            refused(&[held(3, false)], &other),
            "there is no table places"
        );
    }
}
