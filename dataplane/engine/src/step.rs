//! One step of a request in progress.

use rowmill_wire::{Op, Refusal};

use crate::accept;
use crate::batch::{self, Made, Work};
use crate::bind::BoundSchema;
use crate::limits::CHECK_IDS;
use crate::memory::{Denied, Memory};
use crate::prefetch;
use crate::slot::{Slot, Stage};

/// Ids are checked first; what is left of the budget goes to pooling.
///
/// # Errors
/// Outside, where nothing could be done; inside, what the request is refused for.
pub(crate) fn step(
    work: &mut Work<'_>,
    slot: &mut Slot,
    schema: &BoundSchema,
    memory: &mut impl Memory,
) -> Result<Result<Made, Refusal>, Denied> {
    let mut spent = 0;
    if slot.stage == Stage::Checking {
        // An id costs about two cache lines' worth of a row's time: its own bytes and its check.
        match accept::check_step(slot, schema, memory, None, CHECK_IDS) {
            Ok(ids) => spent = ids * 8,
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
    let checked = Made {
        bytes: spent,
        ..Made::default()
    };
    match slot.stage {
        Stage::Pooling if spent < work.budget => {
            work.budget -= spent;
            if slot.header.op == Op::Prefetch {
                return Ok(Ok(prefetch::run(work, slot, schema)));
            }
            match batch::run(work, slot, schema, memory) {
                Ok(made) => Ok(Ok(Made {
                    bytes: made.bytes + spent,
                    ..made
                })),
                // The check has been done, and is to be paid for.
                Err(Denied::Later) if spent > 0 => Ok(Ok(checked)),
                Err(denied) => Err(denied),
            }
        }
        _ => Ok(Ok(checked)),
    }
}
