//! The answers to control messages: what clients are granted, the tables, and schemas.
//!
//! Called by the port's control thread. A schema is bound here, sent to each worker, and answered
//! once every worker knows it, so that a client can send requests that name it at once.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rowmill_port::{ConnId, Service};
use rowmill_table::{Resident, RowFormat, TableKind};
use rowmill_wire::control::{TableEntry, Welcome};
use rowmill_wire::limits::MAX_SCHEMAS;
use rowmill_wire::{Refusal, Schema, SplitRule, Status};

use crate::config::Limits;
use crate::mailbox::{Binding, Mailbox};

/// How long workers get to take a schema in. A step takes some hundred microseconds; this is for
/// workers whose core is taken away. While it lasts other clients' control messages wait.
const BIND_WAIT: Duration = Duration::from_secs(2);

/// What all sessions with clients share, and each one's schemas.
pub struct Sessions {
    tables: Arc<Resident>,
    welcome: Welcome,
    mailboxes: Vec<Arc<Mailbox>>,
    bound: Mutex<Bound>,
    draining: AtomicBool,
}

#[derive(Default)]
struct Bound {
    /// Each connection's schemas by their number.
    of: HashMap<ConnId, Vec<Arc<Binding>>>,
    /// Those of connections that are gone, kept while a worker may still hold one (see [`Binding`]).
    gone: Vec<Arc<Binding>>,
}

impl Sessions {
    /// Sessions on the tables of one generation, with a mailbox for each worker.
    pub fn new(
        model: String,
        tables: Arc<Resident>,
        limits: &Limits,
        mailboxes: Vec<Arc<Mailbox>>,
    ) -> Sessions {
        let welcome = Welcome {
            model,
            generation: tables.generation(),
            split: SplitRule {
                lanes: u16::try_from(mailboxes.len()).expect("at most MAX_WORKERS"),
                min_bags: limits.min_bags_per_part,
            },
            credits: limits.credits,
            completions: 0,
            max_ids: limits.max_ids,
            max_lengths: limits.max_lengths,
            max_region: limits.max_region_bytes,
        };
        Sessions {
            tables,
            welcome,
            mailboxes,
            bound: Mutex::default(),
            draining: AtomicBool::new(false),
        }
    }

    /// From now on new clients and schemas are refused.
    pub fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Binds a schema and sends it to the workers, without waiting for them: see
    /// [`Binding::is_known`].
    ///
    /// # Errors
    /// As `rowmill_engine::bind`; `LimitReached` past [`MAX_SCHEMAS`]; `Draining`; `Internal` where a
    /// worker's mailbox is full.
    pub fn send_schema(
        &self,
        conn: ConnId,
        schema: &Schema,
    ) -> Result<Arc<Binding>, (Refusal, String)> {
        if self.draining.load(Relaxed) {
            return Err(refused(Status::Draining));
        }
        let schema = rowmill_engine::bind(schema, &self.tables)?;
        let mut bound = self.bound.lock().expect("a panic ends the process");
        let schemas = bound.of.entry(conn).or_default();
        let number = schemas.len() as u32;
        if number >= MAX_SCHEMAS {
            let detail = format!(
                "{MAX_SCHEMAS} schemas are bound on this connection; bind them once and use them again"
            );
            return Err((Refusal::whole(Status::LimitReached), detail));
        }
        let binding = Arc::new(Binding::new(
            conn,
            number,
            schema,
            self.mailboxes.len() as u32,
        ));
        schemas.push(Arc::clone(&binding));
        for (worker, mailbox) in self.mailboxes.iter().enumerate() {
            if mailbox.send(Arc::clone(&binding)).is_err() {
                binding.abandon();
                let detail = format!("worker {worker} does not read its mailbox");
                return Err((Refusal::whole(Status::Internal), detail));
            }
        }
        Ok(binding)
    }
}

fn refused(status: Status) -> (Refusal, String) {
    (Refusal::whole(status), String::new())
}

impl Service for Sessions {
    fn welcome(&self, client: &str) -> Result<Welcome, (Refusal, String)> {
        if self.draining.load(Relaxed) {
            tracing::info!(client, "refused a client: draining");
            return Err(refused(Status::Draining));
        }
        Ok(self.welcome.clone())
    }

    fn tables(&self) -> Vec<TableEntry> {
        let entry = |t: &rowmill_table::ResidentTable| TableEntry {
            name: t.name().into(),
            rows: t.lookup_count().into(),
            dim: t.dim() as u32,
            format: match t.format() {
                RowFormat::F32 => 0,
                RowFormat::Int8 => 1,
                RowFormat::F16 => 2,
                RowFormat::Bf16 => 3,
                RowFormat::Int8F16 => 4,
                RowFormat::Int4 => 5,
            },
            kind: match t.kind() {
                TableKind::Dense => 0,
                TableKind::Hashed(_) => 1,
            },
        };
        self.tables.tables().iter().map(entry).collect()
    }

    fn bind(&self, conn: ConnId, schema: Schema) -> Result<u32, (Refusal, String)> {
        let binding = self.send_schema(conn, &schema)?;
        let began = Instant::now();
        while !binding.is_known() {
            if began.elapsed() > BIND_WAIT {
                binding.abandon();
                let detail = format!("a worker did not take the schema in within {BIND_WAIT:?}");
                tracing::error!(conn = conn.0, "{detail}");
                return Err((Refusal::whole(Status::Internal), detail));
            }
            // Workers answer within a step; a thread of its own can afford to look every 20 us.
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(binding.number())
    }

    fn gone(&self, conn: ConnId) {
        let mut bound = self.bound.lock().expect("a panic ends the process");
        let schemas = bound.of.remove(&conn).unwrap_or_default();
        for binding in &schemas {
            binding.abandon();
        }
        bound.gone.extend(schemas);
        bound.gone.retain(|binding| Arc::strong_count(binding) > 1);
    }
}
