//! The answers to control messages: what clients are granted, the tables, and schemas.
//!
//! Called by the port's control thread. A schema is bound here and sent to each worker; the port answers
//! once every worker knows it, so that a client can send requests that name it at once.

mod held;

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use rowmill_engine::{HELD, Side};
use rowmill_port::{ConnId, PendingBind, Service};
use rowmill_table::{Resident, RowFormat, TableKind};
use rowmill_wire::control::{TableEntry, Welcome};
use rowmill_wire::limits::MAX_SCHEMAS;
use rowmill_wire::{Refusal, Schema, SplitRule, Status};

use crate::config::Limits;
use crate::mailbox::{Binding, Mailbox, Versions};

pub use held::{Pending, Prepared};

/// What all sessions with clients share, and each one's schemas.
pub struct Sessions {
    /// But for the generation.
    welcome: Welcome,
    mailboxes: Arc<[Arc<Mailbox>]>,
    bound: Mutex<Bound>,
    draining: AtomicBool,
}

struct Bound {
    /// The tables of each generation that schemas are bound to, and which one is the newest.
    held: [Option<Arc<Resident>>; HELD],
    newest: Side,
    /// Each connection's schemas by their number.
    of: HashMap<ConnId, Vec<Known>>,
    /// Those of connections that are gone, kept while a worker may still hold one (see [`Binding`]).
    gone: Vec<Arc<Binding>>,
}

/// A schema of a connection.
struct Known {
    /// As the client sent it.
    schema: Schema,
    /// As it was sent to the workers; `None` once it is known that they have taken it.
    binding: Option<Arc<Binding>>,
    sides: Versions,
}

/// A schema on its way to the workers.
struct Sending {
    binding: Arc<Binding>,
    mailboxes: Arc<[Arc<Mailbox>]>,
    /// Workers that it was sent to.
    sent: usize,
}

impl Sending {
    /// Sends it to the workers whose mailboxes had no room before.
    fn send(&mut self) {
        while let Some(mailbox) = self.mailboxes.get(self.sent)
            && mailbox.send(Arc::clone(&self.binding)).is_ok()
        {
            self.sent += 1;
        }
    }
}

impl PendingBind for Sending {
    fn number(&self) -> u32 {
        self.binding.number()
    }

    fn is_known(&mut self) -> bool {
        self.send();
        self.binding.is_known()
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // Means nothing to workers that know it.
        self.binding.abandon();
    }
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
            generation: 0,
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
            welcome,
            mailboxes: mailboxes.into(),
            bound: Mutex::new(Bound {
                held: [Some(tables), None],
                newest: Side::A,
                of: HashMap::new(),
                gone: Vec::new(),
            }),
            draining: AtomicBool::new(false),
        }
    }

    /// From now on new clients and schemas are refused.
    pub fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    fn bound(&self) -> MutexGuard<'_, Bound> {
        self.bound.lock().expect("a panic ends the process")
    }
}

impl Bound {
    fn newest(&self) -> &Arc<Resident> {
        let newest = self.held[self.newest.index()].as_ref();
        newest.expect("the newest generation is held")
    }

    /// Binds a schema to all generations that are held, the newest first.
    fn bind(&self, schema: &Schema) -> Result<Versions, (Refusal, String)> {
        let mut sides = Versions::default();
        for side in [self.newest, self.newest.other()] {
            let Some(tables) = &self.held[side.index()] else {
                continue;
            };
            let bound =
                rowmill_engine::bind(schema, tables).map_err(|(refusal, detail)| {
                    match side == self.newest {
                        true => (refusal, detail),
                        false => (
                            refusal,
                            format!(
                                "in generation {}, which is held, too: {detail}",
                                tables.generation()
                            ),
                        ),
                    }
                })?;
            sides[side.index()] = Some(Arc::new(bound));
        }
        Ok(sides)
    }
}

/// The number of a format in messages.
pub(crate) fn format_number(format: RowFormat) -> u32 {
    match format {
        RowFormat::F32 => 0,
        RowFormat::Int8 => 1,
        RowFormat::F16 => 2,
        RowFormat::Bf16 => 3,
        RowFormat::Int8F16 => 4,
        RowFormat::Int4 => 5,
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
        Ok(Welcome {
            generation: self.bound().newest().generation(),
            ..self.welcome.clone()
        })
    }

    fn tables(&self) -> Vec<TableEntry> {
        let entry = |t: &rowmill_table::ResidentTable| TableEntry {
            name: t.name().into(),
            rows: t.lookup_count().into(),
            dim: t.dim() as u32,
            format: format_number(t.format()) as _,
            kind: match t.kind() {
                TableKind::Dense => 0,
                TableKind::Hashed(_) => 1,
            },
        };
        let tables = Arc::clone(self.bound().newest());
        tables.tables().iter().map(entry).collect()
    }

    /// Refuses as `rowmill_engine::bind`; with `LimitReached` past [`MAX_SCHEMAS`]; with `Draining`.
    fn bind(
        &self,
        conn: ConnId,
        schema: Schema,
    ) -> Result<Box<dyn PendingBind>, (Refusal, String)> {
        if self.draining.load(Relaxed) {
            return Err(refused(Status::Draining));
        }
        let mut bound = self.bound();
        let sides = bound.bind(&schema)?;
        let schemas = bound.of.entry(conn).or_default();
        let number = schemas.len() as u32;
        if number >= MAX_SCHEMAS {
            let detail = format!(
                "{MAX_SCHEMAS} schemas are bound on this connection; bind them once and use them again"
            );
            return Err((Refusal::whole(Status::LimitReached), detail));
        }
        let workers = self.mailboxes.len() as u32;
        let binding = Arc::new(Binding::new(conn, number, sides.clone(), workers));
        schemas.push(Known {
            schema,
            binding: Some(Arc::clone(&binding)),
            sides,
        });
        let mut sending = Sending {
            binding,
            mailboxes: Arc::clone(&self.mailboxes),
            sent: 0,
        };
        sending.send();
        Ok(Box::new(sending))
    }

    fn gone(&self, conn: ConnId) {
        let mut bound = self.bound();
        let schemas = bound.of.remove(&conn).unwrap_or_default();
        for binding in schemas.into_iter().filter_map(|known| known.binding) {
            binding.abandon();
            bound.gone.push(binding);
        }
        bound.gone.retain(|binding| Arc::strong_count(binding) > 1);
    }
}
