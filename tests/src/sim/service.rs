//! The service's answers to control messages: `rowmilld`'s own, with a note of what was bound.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rowmill_port::{ConnId, PendingBind, Service};
use rowmill_rowmilld::service::Sessions;
use rowmill_wire::control::{TableEntry, Welcome};
use rowmill_wire::{Refusal, Schema};

use super::history::Stand;
use super::model::{SchemaModel, Truth};

type Bound = Arc<Mutex<BTreeMap<(ConnId, u32), Arc<SchemaModel>>>>;

/// The schemas that are bound now.
#[derive(Clone)]
pub struct Schemas {
    bound: Bound,
    truth: Truth,
}

impl Schemas {
    /// None yet.
    pub(super) fn new(truth: Truth) -> Schemas {
        Schemas {
            bound: Bound::default(),
            truth,
        }
    }

    /// How far each generation is of which rows have become others.
    pub(super) fn stands(&self) -> BTreeMap<u64, Stand> {
        self.truth.history.stands()
    }

    /// The schema that a connection's requests name by `number`.
    pub fn find(&self, conn: ConnId, number: u32) -> Option<Arc<SchemaModel>> {
        self.bound
            .lock()
            .expect("one thread")
            .get(&(conn, number))
            .cloned()
    }
}

/// `rowmilld`'s sessions, and what is bound there.
pub struct Noted {
    sessions: Arc<Sessions>,
    schemas: Schemas,
}

impl Noted {
    /// Notes what `sessions` binds.
    pub fn new(sessions: Arc<Sessions>, schemas: Schemas) -> Noted {
        Noted { sessions, schemas }
    }
}

impl Service for Noted {
    fn welcome(&self, client: &str) -> Result<Welcome, (Refusal, String)> {
        self.sessions.welcome(client)
    }

    fn tables(&self) -> Vec<TableEntry> {
        self.sessions.tables()
    }

    fn bind(
        &self,
        conn: ConnId,
        schema: Schema,
    ) -> Result<Box<dyn PendingBind>, (Refusal, String)> {
        let pending = self.sessions.bind(conn, schema.clone())?;
        let model = Arc::new(SchemaModel::new(&schema, &self.schemas.truth));
        self.schemas
            .bound
            .lock()
            .expect("one thread")
            .insert((conn, pending.number()), model);
        Ok(pending)
    }

    fn gone(&self, conn: ConnId) {
        self.schemas
            .bound
            .lock()
            .expect("one thread")
            .retain(|(of, _), _| *of != conn);
        self.sessions.gone(conn);
    }
}
