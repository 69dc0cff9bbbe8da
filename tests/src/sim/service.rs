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

/// The sessions of the `rowmilld` that runs now, and what is bound there.
pub struct Noted {
    sessions: Mutex<Option<Arc<Sessions>>>,
    schemas: Schemas,
}

impl Noted {
    /// Notes what is bound. None runs yet.
    pub fn new(schemas: Schemas) -> Noted {
        Noted {
            sessions: Mutex::default(),
            schemas,
        }
    }

    /// These are of the one that runs from now on; nothing is bound there.
    pub fn is_now(&self, sessions: Arc<Sessions>) {
        self.schemas.bound.lock().expect("one thread").clear();
        *self.sessions.lock().expect("one thread") = Some(sessions);
    }

    fn sessions(&self) -> Arc<Sessions> {
        let sessions = self.sessions.lock().expect("one thread");
        Arc::clone(sessions.as_ref().expect("one runs"))
    }
}

impl Service for Noted {
    fn welcome(&self, client: &str) -> Result<Welcome, (Refusal, String)> {
        self.sessions().welcome(client)
    }

    fn tables(&self) -> Vec<TableEntry> {
        self.sessions().tables()
    }

    fn bind(
        &self,
        conn: ConnId,
        schema: Schema,
    ) -> Result<Box<dyn PendingBind>, (Refusal, String)> {
        let pending = self.sessions().bind(conn, schema.clone())?;
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
        self.sessions().gone(conn);
    }
}
