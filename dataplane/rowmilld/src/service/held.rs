//! Which generations schemas are bound to, as another is loaded, becomes the newest, and goes.

use std::sync::Arc;

use rowmill_engine::Side;
use rowmill_table::{Resident, TableKind};

use super::{Bound, Sessions};
use crate::mailbox::Binding;
use crate::turnover::Also;

/// Schemas that were bound before there was another generation, and those of them that workers may still have to take in.
pub struct Prepared {
    /// What workers are to have bound, too.
    pub also: Vec<Also>,
    /// What they have to take in before that.
    pub pending: Pending,
}

/// Schemas that workers may still have to take in.
pub struct Pending(Vec<Arc<Binding>>);

impl Pending {
    /// Whether all workers have taken them, but for those that were given up. A schema that is not taken for 2 s is.
    pub fn is_settled(&self) -> bool {
        let is_settled = |binding: &Arc<Binding>| binding.is_known() || binding.is_abandoned();
        self.0.iter().all(is_settled)
    }
}

impl Bound {
    fn pending(&self) -> Pending {
        let known = self.of.values().flatten();
        let bindings = known.filter_map(|known| known.binding.clone());
        Pending(bindings.collect())
    }
}

impl Sessions {
    /// Binds all schemas to the tables of another generation, too, on the side where none is; from now on new ones are bound to both.
    ///
    /// # Errors
    /// Why it can't take the place of the newest: a sentence. Nothing is changed then.
    pub fn prepare(&self, side: Side, tables: &Arc<Resident>) -> Result<Prepared, String> {
        let mut bound = self.bound();
        check(bound.newest(), tables)?;
        let (newest, number) = (bound.newest.index(), tables.generation());
        let mut also = Vec::new();
        for (&conn, schemas) in &bound.of {
            for (known, number_of_schema) in schemas.iter().zip(0..) {
                let bound = rowmill_engine::bind(&known.schema, tables).map_err(|(refusal, why)| {
                    format!("a client has a schema that generation {number} does not go with: {}: {why}", refusal.status)
                })?;
                let before = known.sides[newest].as_ref();
                also.push(Also {
                    conn,
                    number: number_of_schema,
                    before: Arc::clone(before.expect("bound to the newest")),
                    bound: Arc::new(bound),
                });
            }
        }
        for one in &also {
            let schemas = bound.of.get_mut(&one.conn);
            let known = schemas.and_then(|schemas| schemas.get_mut(one.number as usize));
            known.expect("the same list").sides[side.index()] = Some(Arc::clone(&one.bound));
        }
        bound.held[side.index()] = Some(Arc::clone(tables));
        let pending = bound.pending();
        Ok(Prepared { also, pending })
    }

    /// Clients that come from now on are told of the generation of a side as the newest.
    pub fn switch(&self, side: Side) {
        self.bound().newest = side;
    }

    /// New schemas are not bound to the generation of a side any more. Tells of those that were.
    pub fn withdraw(&self, side: Side) -> Pending {
        let mut bound = self.bound();
        bound.held[side.index()] = None;
        bound.pending()
    }

    /// Gives up what is bound to the generation of a side, which was withdrawn and which no worker has any more.
    pub fn release(&self, side: Side) {
        let mut bound = self.bound();
        for known in bound.of.values_mut().flatten() {
            known.sides[side.index()] = None;
            let is_settled =
                |binding: &mut Arc<Binding>| binding.is_known() || binding.is_abandoned();
            known.binding.take_if(is_settled);
        }
        bound.gone.retain(|binding| Arc::strong_count(binding) > 1);
    }
}

/// Whether clients that know the tables of one generation can do with those of another.
fn check(newest: &Resident, other: &Resident) -> Result<(), String> {
    let (before, number) = (newest.generation(), other.generation());
    for table in newest.tables() {
        let name = table.name();
        let Some(same) = other.table(name) else {
            continue; // Who has bound it is looked for by its schema.
        };
        if table.dim() != same.dim() {
            return Err(format!(
                "table {name} has dim {} in generation {number} and {} in generation {before}, which clients' results are laid out for; \
                 to serve it start anew",
                same.dim(),
                table.dim()
            ));
        }
        let is_dense = |kind| matches!(kind, TableKind::Dense);
        if is_dense(table.kind()) != is_dense(same.kind()) {
            return Err(format!(
                "table {name} is {} in generation {number} and {} in generation {before}, so that ids mean something else; to serve it \
                 start anew",
                same.kind(),
                table.kind()
            ));
        }
    }
    Ok(())
}
