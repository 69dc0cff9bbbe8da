//! `rowmill-control`, the control plane: configuration, connections, state, and the start and end of it all.
//!
//! [`planning`] is the one thread that decides, with its clock; [`deciding`] is what it does: a planner of `rowmill-admission`, and what of
//! it is kept. [`serve`] is the other one: connections of dataplanes and of operators, who prove who they are where that is asked, and whose requests [`api`] answers. Neither stands in the data's way: a dataplane
//! goes on without them.
//!
//! Not here, by intent: how anything is decided; and what dataplanes and the control plane tell each other, which is `rowmill-link`'s.
#![forbid(unsafe_code)]

pub mod api;
pub mod config;
pub mod deciding;
pub mod deltas;
pub mod log;
mod places;
pub mod planning;
pub mod records;
mod secure;
pub mod serve;
mod trust;
