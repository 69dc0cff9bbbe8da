//! The one place that chooses an instruction set and calls into it.

use crate::{Bags, scalar};
use core::fmt;
use core::str::FromStr;
use rowmill_arena::Window;

/// The instruction sets that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// The portable reference.
    Scalar,
    /// Armv8.0's Advanced SIMD.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

/// The instruction set that was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The chosen one.
    pub isa: Isa,
    /// The reason, as a sentence for people.
    pub why: String,
}

/// A name that is none of an instruction set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set {0:?}: it is one of scalar, neon, avx2, avx512")]
pub struct UnknownIsa(pub String);

impl Isa {
    /// All of them, the widest last.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// Chooses the widest that this machine has.
    pub fn detect() -> Choice {
        let isa = *Isa::available().last().expect("scalar is always there");
        let why = match isa {
            Isa::Scalar => {
                "the CPU has neither AVX-512 (F, BW, DQ, VL), nor AVX2 with FMA and F16C, nor NEON"
            }
            Isa::Neon => "the CPU is an AArch64 with NEON",
            Isa::Avx2 => "the CPU has AVX2 with FMA and F16C, but not AVX-512 F, BW, DQ and VL",
            Isa::Avx512 => "the CPU has AVX-512 F, BW, DQ and VL",
        };
        Choice {
            isa,
            why: why.to_owned(),
        }
    }

    /// Those that this machine has, the widest last.
    pub fn available() -> Vec<Isa> {
        Isa::ALL
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// Whether this machine has it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Neon => false,
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
        }
    }

    /// Whether this machine has it.
    #[cfg(target_arch = "aarch64")]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Isa::Avx2 | Isa::Avx512 => false,
        }
    }

    /// Whether this machine has it.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn is_available(self) -> bool {
        self == Isa::Scalar
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Isa, UnknownIsa> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.to_string() == name)
            .ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}

/// The kernels of one instruction set that this machine has.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    isa: Isa,
}

impl Kernels {
    /// The kernels of `isa`.
    ///
    /// # Panics
    /// If this machine does not have it (see [`Isa::is_available`]).
    pub fn new(isa: Isa) -> Kernels {
        assert!(
            isa.is_available(),
            "{isa} kernels on a machine without {isa}"
        );
        Kernels { isa }
    }

    /// Their instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Pools every bag of `batch` and stores each vector at its place in `target`, any alignment.
    ///
    /// Nothing else of the target is written, and nothing of it is read. Where places overlap, the
    /// later feature and the later bag win.
    ///
    /// # Panics
    /// If the lengths of a feature don't add up to its ids, an id names no row, weights are not one
    /// for each id or come with a mean, or a vector lies outside the target. All this is checked of
    /// the whole batch before the first row is read.
    pub fn pool(&self, batch: &[Bags<'_>], target: &Window<'_>) {
        for bags in batch {
            bags.assert_sound(target.len());
        }
        match self.isa {
            Isa::Scalar => pool_scalar(batch, target),
            // SAFETY: the batch was just checked against the target's length, and `new` saw that
            // the machine has the instruction set.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Isa::Avx2 => unsafe { crate::avx2::pool(batch, target) },
            // SAFETY: likewise.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Isa::Avx512 => unsafe { crate::avx512::pool(batch, target) },
            // SAFETY: likewise.
            #[cfg(target_arch = "aarch64")]
            #[allow(unsafe_code)]
            Isa::Neon => unsafe { crate::neon::pool(batch, target) },
            #[allow(unreachable_patterns)]
            isa => unreachable!("{isa} kernels on another architecture"),
        }
    }
}

/// The greatest of some ids; 0 of none. Of those of a request it is asked twice: when they come, and by
/// [`Kernels::pool`]. With what every x86-64 has, which is no maximum of unsigned words, it takes 9 us of 54,784
/// ids in the cache, with AVX2 1.9 us.
pub(crate) fn greatest(ids: &[u32]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the machine has it.
        #[allow(unsafe_code)]
        return unsafe { crate::avx2::greatest(ids) };
    }
    ids.iter().fold(0, |max, &id| id.max(max))
}

/// The reference, stored by copies: it has no need to be fast.
fn pool_scalar(batch: &[Bags<'_>], target: &Window<'_>) {
    for bags in batch {
        scalar::for_each_vector(bags, |offset, bytes| target.write(offset, bytes));
    }
}
