//! How much of the arena each table is to have: what the control plane decides, from lookups that dataplanes have sampled.
//!
//! A table is sampled by row ([`Sampling`]): all lookups of some rows, none of the others. A [`Model`] of the table lets the dataplane's
//! own policy run over the sample at several sizes, each in a cache so much smaller that it is as crowded as the large one would be
//! ([`Miniature`]). That gives the table's hits by size, a [`Curve`]; and [`divide`] gives the arena to tables as long as the next
//! bytes gain most there. A [`Planner`] does that for all dataplanes, from what they tell, in steps.
//!
//! Pure: there is no clock, no thread and no draw that doesn't follow from a seed, so that a recorded sample has the same result each time.
#![forbid(unsafe_code)]

mod curve;
mod division;
mod hash;
mod miniature;
mod model;
mod planner;
mod sampling;
mod spread;

pub use curve::{Curve, Point};
pub use division::{Demand, TooSmall, divide};
pub use miniature::Miniature;
pub use model::Model;
pub use planner::{
    DataplaneView, Event, GenerationRequest, GenerationWish, HoldingView, Limits, ModelGenerations,
    ModelView, PinsView, Planner, Recorded, Refused, RowView, Settings, SettingsError,
    SettingsView, ShareMove, ShareView, TURN_NS, TableView, Tried,
};
pub use sampling::{Sampling, place};
