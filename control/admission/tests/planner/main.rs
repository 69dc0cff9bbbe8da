//! The planner with simulated dataplanes: what it decides, and what comes of it.

mod decisions;
mod generations;
mod hostile;
mod shifts;
mod simulated;
mod storms;
