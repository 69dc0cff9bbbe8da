//! The one place that chooses how tags are compared.

use core::fmt;

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512::Avx512;
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
use super::pass::{self, Looked};
use super::portable::Portable;
use crate::store::drawn::Drawn;
use crate::store::extent::Sets;
use crate::store::memory::AllTags;

/// The instruction sets that comparing tags is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Any machine's.
    Portable,
    /// Armv8.0's Advanced SIMD.
    Neon,
    /// AVX2.
    Avx2,
    /// AVX-512 F.
    Avx512,
}

impl Isa {
    /// All of them, the fastest last.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512];
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

/// The comparison of one instruction set that this machine has.
#[derive(Clone, Copy, Debug)]
pub struct Tags {
    by: By,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

impl Tags {
    /// The fastest that this machine has.
    pub fn detect() -> Tags {
        let fastest = Isa::ALL.into_iter().rev().find_map(Tags::new);
        fastest.expect("the portable one is always there")
    }

    /// That of an instruction set, if this machine has it.
    #[cfg(target_arch = "x86_64")]
    pub fn new(isa: Isa) -> Option<Tags> {
        let by = match isa {
            Isa::Portable => Some(By::Portable(Portable)),
            Isa::Neon => None,
            Isa::Avx2 => Avx2::detect().map(By::Avx2),
            Isa::Avx512 => Avx512::detect().map(By::Avx512),
        };
        by.map(|by| Tags { by })
    }

    /// That of an instruction set, if this machine has it.
    #[cfg(target_arch = "aarch64")]
    pub fn new(isa: Isa) -> Option<Tags> {
        let by = match isa {
            Isa::Portable => Some(By::Portable(Portable)),
            Isa::Neon => Neon::detect().map(By::Neon),
            Isa::Avx2 | Isa::Avx512 => None,
        };
        by.map(|by| Tags { by })
    }

    /// That of an instruction set, if this machine has it.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn new(isa: Isa) -> Option<Tags> {
        (isa == Isa::Portable).then_some(Tags {
            by: By::Portable(Portable),
        })
    }

    /// Its instruction set.
    pub fn isa(&self) -> Isa {
        match self.by {
            By::Portable(_) => Isa::Portable,
            #[cfg(target_arch = "x86_64")]
            By::Avx2(_) => Isa::Avx2,
            #[cfg(target_arch = "x86_64")]
            By::Avx512(_) => Isa::Avx512,
            #[cfg(target_arch = "aarch64")]
            By::Neon(_) => Isa::Neon,
        }
    }

    /// As [`pass::find`] says.
    pub(in crate::store) fn find(
        self,
        tags: AllTags<'_>,
        sets: &impl Sets,
        rows: &[u32],
        places: &mut [u32],
        drawn: &mut Drawn,
    ) -> Looked {
        // For tags of either length, which are of two types.
        macro_rules! find {
            ($tags:ident) => {
                match self.by {
                    By::Portable(probe) => pass::find(probe, $tags, sets, rows, places, drawn),
                    #[cfg(target_arch = "x86_64")]
                    By::Avx2(probe) => probe.find($tags, sets, rows, places, drawn),
                    #[cfg(target_arch = "x86_64")]
                    By::Avx512(probe) => probe.find($tags, sets, rows, places, drawn),
                    #[cfg(target_arch = "aarch64")]
                    By::Neon(probe) => probe.find($tags, sets, rows, places, drawn),
                }
            };
        }
        match tags {
            AllTags::One(tags) => find!(tags),
            AllTags::Two(tags) => find!(tags),
        }
    }
}
