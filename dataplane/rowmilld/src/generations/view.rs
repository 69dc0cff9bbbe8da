//! What is held, for others to see.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use rowmill_engine::{HELD, Side};
use rowmill_table::{Generation, Resident, TableInfo};

use super::{Source, Wish};

/// A generation that is held.
#[derive(Debug)]
pub struct Held {
    /// Its number.
    pub number: u64,
    /// Where it was read from.
    pub directory: PathBuf,
    /// Its tables.
    pub tables: Vec<TableInfo>,
    /// What of them is in memory.
    pub resident: Arc<Resident>,
}

impl Held {
    /// One that was loaded.
    pub fn new(generation: &Generation, resident: Arc<Resident>) -> Held {
        Held {
            number: generation.number(),
            directory: generation.dir().to_owned(),
            tables: generation.tables().to_vec(),
            resident,
        }
    }
}

#[derive(Debug)]
struct Now {
    held: [Option<Arc<Held>>; HELD],
    newest: Side,
    /// Whether the other one was the newest before, and no change has been taken back since.
    can_return: bool,
}

/// Which generations are held.
#[derive(Debug)]
pub struct View(Mutex<Now>);

impl View {
    /// The first one is held.
    pub fn new(first: Held) -> View {
        View(Mutex::new(Now {
            held: [Some(Arc::new(first)), None],
            newest: Side::A,
            can_return: false,
        }))
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.0.lock().expect("a panic ends the process")
    }

    /// The newest.
    pub fn newest(&self) -> Arc<Held> {
        let now = self.now();
        let newest = now.held[now.newest.index()].as_ref();
        Arc::clone(newest.expect("the newest generation is held"))
    }

    /// All, with their sides, the newest first; and whether it can be gone back to the other.
    pub fn held(&self) -> (Vec<(Side, Arc<Held>)>, bool) {
        let now = self.now();
        let sides = [now.newest, now.newest.other()].into_iter();
        let held =
            sides.filter_map(|side| Some((side, Arc::clone(now.held[side.index()].as_ref()?))));
        (held.collect(), now.can_return)
    }

    /// The side that holds a generation.
    pub(super) fn side(&self, number: u64) -> Option<Side> {
        let (held, _) = self.held();
        let mut held = held.into_iter();
        held.find_map(|(side, held)| (held.number == number).then_some(side))
    }

    /// The side that is not the newest.
    pub(super) fn other(&self) -> Side {
        self.now().newest.other()
    }

    /// Another one is held, or none any more.
    pub(super) fn set_other(&self, held: Option<Held>) {
        let mut now = self.now();
        let other = now.newest.other();
        let before = std::mem::replace(&mut now.held[other.index()], held.map(Arc::new));
        now.can_return = false;
        // Giving its memory back takes a while, in which others look.
        drop(now);
        drop(before);
    }

    /// The other one is the newest now. `can_return`: it can be gone back.
    pub(super) fn switch(&self, can_return: bool) {
        let mut now = self.now();
        (now.newest, now.can_return) = (now.newest.other(), can_return);
    }

    /// Whether a change changes something.
    ///
    /// # Errors
    /// Why it can't be made, as far as that shows without looking for a generation.
    pub(super) fn allows(&self, wish: &Wish) -> Result<bool, String> {
        let (held, can_return) = self.held();
        let newest = held.first().map_or(0, |(_, held)| held.number);
        let other = held.get(1).map(|(_, held)| held.number);
        let not_held = |number: u64| {
            let beside = other.map_or(String::new(), |other| format!(" and {other}"));
            Err(format!(
                "generation {number} is not held: {newest}{beside} is; load it first"
            ))
        };
        match *wish {
            Wish::Load(Source::Number(number)) if Some(number) == other || number == newest => {
                Ok(false)
            }
            Wish::Load(_) => match other {
                Some(other) => Err(format!(
                    "two generations are held, {newest} and {other}, and no more can be: unload {other} first"
                )),
                None => Ok(true),
            },
            Wish::Activate(number) if number == newest => Ok(false),
            Wish::Activate(number) | Wish::Unload(number)
                if Some(number) != other && number != newest =>
            {
                not_held(number)
            }
            Wish::Unload(number) if number == newest => Err(format!(
                "generation {number} is the newest, which is served: activate another one first"
            )),
            Wish::Activate(_) | Wish::Unload(_) => Ok(true),
            Wish::Rollback if can_return => Ok(true),
            Wish::Rollback => Err(format!(
                "there is nothing to go back to: no other generation that is held was the newest before {newest}"
            )),
        }
    }
}
