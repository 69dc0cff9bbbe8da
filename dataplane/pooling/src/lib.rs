//! Pooling: the rows of many bags become one vector a bag, stored straight into a target window.
//!
//! [`scalar`] says in a few lines what pooling means; AVX2, AVX-512 and NEON give the same bits faster.
//! [`Isa::detect`] chooses, [`Kernels::pool`] checks a batch and runs it, and no other code knows
//! the instruction set. Nothing here knows tables or requests: a batch names rows by their bytes.
//!
//! Arithmetic, the same in every instruction set:
//! - each dimension has one f32 accumulator, starting at +0.0, to which rows are added in the order
//!   of the ids;
//! - a value of a row of codes is `fma(scale, code, bias)`;
//! - a weighted sum adds a value by `fma(weight, value, accumulator)`;
//! - a mean is the sum divided by the bag's length, a weighted mean the weighted sum divided by the sum of
//!   the weights in the order of the ids from +0.0, one division a dimension; a divisor of zero gives +0.0;
//! - a maximum is that of the values; a NaN is greater than all, +0.0 greater than -0.0, so that it does not depend on the order of the ids;
//! - an empty bag gives +0.0 everywhere;
//! - f16 and bf16 results are the f32 ones rounded to nearest, ties to even;
//! - a NaN that comes out is always the quiet NaN `0x7fc0_0000` (`0x7e00` as f16, `0x7fc0` as bf16). Which
//!   operand's payload an addition of two NaNs keeps depends on operand order, which compilers are free to
//!   swap; one fixed NaN, put in when a bag is stored, keeps the results equal bit for bit.
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod batch;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod kernel;
#[cfg(target_arch = "x86_64")]
pub mod limit;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod order;
mod rows;
pub mod scalar;
mod select;

pub use batch::{Bags, Mode, Output, check_ids};
pub use rows::{DIM_MAX, DIM_STEP, RowFormat, Rows, RowsError};
pub use select::{Choice, Isa, Kernels, UnknownIsa};
