//! What a simulated dataplane holds: generations, and deltas that were applied to them.

use std::collections::BTreeMap;

use rowmill_link::GenerationsPolicy;
use rowmill_rowmilld::control::next;
use rowmill_rowmilld::generations::{Source, Wish};
use rowmill_table::delta_chain;

use super::Mistake;
use super::deltas::base;
use super::net::{Broken, Net};

/// A change that has failed is tried again after this, as by `rowmilld`.
const AGAIN_NS: u64 = 60_000_000_000;

/// A generation that is held.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) number: u64,
    /// Which of all loads it is from.
    load: u64,
    pub(super) applied: u64,
    chain: u32,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Holder {
    /// The one that is served first.
    pub(super) held: Vec<Held>,
    /// Checksums of the deltas that are kept on its disk, by generation.
    kept: BTreeMap<u64, Vec<u32>>,
    wanted: Option<GenerationsPolicy>,
    under_way: Option<(Wish, u64)>,
    failed: Option<(Wish, String, u64)>,
    /// A generation of which there are no files.
    pub(super) has_not: Option<u64>,
    /// It was changed alone, by mistake for ever.
    strays: bool,
}

impl Holder {
    pub(super) fn new() -> Holder {
        Holder {
            held: Vec::new(),
            kept: BTreeMap::new(),
            wanted: None,
            under_way: None,
            failed: None,
            has_not: None,
            strays: false,
        }
    }

    /// A process begins with a generation, and with the deltas that another one has kept.
    pub(super) fn begin(&mut self, number: u64, net: &mut Net) -> Result<(), Broken> {
        (self.wanted, self.under_way, self.failed) = (None, None, None);
        self.held = vec![self.loaded(number, net)?];
        Ok(())
    }

    /// Its disk is another one.
    pub(super) fn lose(&mut self) {
        self.kept.clear();
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.held.iter().map(|held| held.number).collect()
    }

    fn loaded(&mut self, number: u64, net: &mut Net) -> Result<Held, Broken> {
        let mut held = Held {
            number,
            load: net.number(),
            applied: 0,
            chain: base(number),
        };
        for &crc32 in self.kept.get(&number).into_iter().flatten() {
            held.apply(crc32, net)?;
        }
        Ok(held)
    }

    /// What is to be held from now on, by a policy.
    pub(super) fn want(&mut self, wanted: Option<GenerationsPolicy>) {
        if wanted != self.wanted {
            self.failed = None;
        }
        self.wanted = wanted;
    }

    /// Why something can't be done, if so.
    pub(super) fn refused(&self) -> Option<String> {
        self.failed.as_ref().map(|(_, why, _)| why.clone())
    }

    /// The other generation is served, as an operator of the dataplane alone wants.
    pub(super) fn stray(&mut self, net: &Net) -> bool {
        if self.held.len() < 2 || self.under_way.is_some() {
            return false;
        }
        self.held.reverse();
        self.strays = net.mistake == Some(Mistake::KeepsOwnWay);
        true
    }

    /// Goes on with a change, or begins the next one.
    pub(super) fn go_on(&mut self, now_ns: u64, net: &mut Net) -> Result<(), Broken> {
        if let Some((_, until_ns)) = self.under_way
            && now_ns < until_ns
        {
            return Ok(());
        }
        if let Some((wish, _)) = self.under_way.take() {
            self.change(wish, now_ns, net)?;
        }
        let wanted = self.wanted.as_ref().filter(|_| !self.strays);
        let Some(wish) = wanted.and_then(|wanted| next(wanted, &self.numbers())) else {
            self.failed = None;
            return Ok(());
        };
        let waits = self.failed.as_ref().is_some_and(|(failed, _, at_ns)| {
            *failed == wish && now_ns < at_ns.saturating_add(AGAIN_NS)
        });
        if !waits {
            let takes_ns = match wish {
                Wish::Load(_) => net.rng.u64(500_000_000..5_000_000_000),
                _ => net.rng.u64(0..300_000_000),
            };
            self.under_way = Some((wish, now_ns + takes_ns));
        }
        Ok(())
    }

    fn change(&mut self, wish: Wish, now_ns: u64, net: &mut Net) -> Result<(), Broken> {
        match wish {
            Wish::Load(Source::Number(number)) if self.has_not == Some(number) => {
                net.happens("not loaded", "");
                let why =
                    format!("generation {number}: could not {wish}: there is no such directory");
                self.failed = Some((wish, why, now_ns));
            }
            Wish::Load(Source::Number(number)) => {
                let loaded = self.loaded(number, net)?;
                self.held.push(loaded);
            }
            Wish::Activate(number) => {
                assert_eq!(self.held[1].number, number, "one of two");
                self.held.reverse();
            }
            Wish::Unload(number) => {
                let gone = self.held.pop().expect("there is one");
                assert_eq!(gone.number, number, "never the one that is served");
            }
            Wish::Load(Source::Directory(_)) | Wish::Rollback => panic!("no policy asks for it"),
        }
        Ok(())
    }

    /// The delta that is to be asked for next, of one that is held, with what tells those before it from others.
    pub(super) fn next_delta(&self, at: usize, net: &mut Net) -> (u64, Option<u32>) {
        let held = &self.held[at];
        match net.mistake {
            Some(Mistake::AppliesTwice) if held.applied > 0 && net.rng.u8(0..8) == 0 => {
                (held.applied, None)
            }
            Some(Mistake::TakesAhead) if net.rng.bool() => (held.applied + 2, None),
            _ => (held.applied + 1, Some(held.chain)),
        }
    }

    /// A delta has come whole: it is kept, and applied.
    pub(super) fn apply(
        &mut self,
        at: usize,
        sequence: u64,
        crc32: u32,
        net: &mut Net,
    ) -> Result<(), Broken> {
        let held = &mut self.held[at];
        if sequence != held.applied + 1 {
            net.applied(held.load, (held.number, sequence), crc32)?;
        }
        self.kept.entry(held.number).or_default().push(crc32);
        held.apply(crc32, net)
    }
}

impl Held {
    fn apply(&mut self, crc32: u32, net: &mut Net) -> Result<(), Broken> {
        self.applied += 1;
        self.chain = delta_chain(self.chain, crc32);
        net.applied(self.load, (self.number, self.applied), crc32)
    }
}
