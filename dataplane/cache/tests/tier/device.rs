//! A device without a disk.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rowmill_arena::{ArenaError, ReadError};
use rowmill_cache::tier::{Device, EachRead, FileTier, MIN_READ_BYTES};

use crate::model::{Model, SPECS};

/// A device that answers when it is told to, as it is told to.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScriptedDevice(pub(crate) Rc<RefCell<Script>>);

#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) files: Vec<Vec<u8>>,
    /// Reads that were asked for: file, offset, length, token.
    pub(crate) asked: Vec<(usize, u64, usize, u64)>,
    /// Places in `asked` to be answered at the next poll, in this order, with an error or the bytes.
    pub(crate) due: Vec<(usize, Option<ReadError>)>,
    pub(crate) stalled: bool,
    /// Reads at a time, if they are not [`DEVICE_SLOTS`].
    pub(crate) slots: Option<u32>,
}

pub(crate) const DEVICE_SLOTS: u32 = 3;

impl Device for ScriptedDevice {
    type File = usize;

    fn slots(&self) -> u32 {
        self.0.borrow().slots.unwrap_or(DEVICE_SLOTS)
    }

    fn read_bytes(&self) -> usize {
        MIN_READ_BYTES
    }

    fn submit(&mut self, file: usize, offset: u64, len: usize, token: u64) {
        self.0.borrow_mut().asked.push((file, offset, len, token));
    }

    fn poll(&mut self, most: usize, each: EachRead<'_>) -> Result<usize, ArenaError> {
        let mut script = self.0.borrow_mut();
        if script.stalled {
            return Err(ArenaError::ImpossibleSize { bytes: 0 });
        }
        let now = script.due.len().min(most);
        let due: Vec<_> = script.due.drain(..now).collect();
        for (place, error) in due {
            let (file, offset, len, token) = script.asked[place];
            match error {
                Some(error) => each(token, Err(error)),
                None => each(token, Ok(&script.files[file][offset as usize..][..len])),
            }
        }
        Ok(now)
    }
}

/// A tier over a device of which the second part is kept, and which has the files of the model.
pub(crate) fn scripted(
    model: &Model,
    budget_ns: u64,
) -> (FileTier<ScriptedDevice>, ScriptedDevice) {
    scripted_with(model, budget_ns, DEVICE_SLOTS)
}

/// The same with so many reads at a time.
pub(crate) fn scripted_with(
    model: &Model,
    budget_ns: u64,
    slots: u32,
) -> (FileTier<ScriptedDevice>, ScriptedDevice) {
    let device = ScriptedDevice::default();
    device.0.borrow_mut().slots = Some(slots);
    device.0.borrow_mut().files = model.files.clone();
    let mut tier = FileTier::over(device.clone(), 24, SPECS.len() as u32, budget_ns);
    for (file, info) in model.generation.tables().iter().enumerate() {
        let checksums = model.generation.page_checksums(&info.name).unwrap();
        tier.add_file(
            info.clone(),
            Arc::new(checksums),
            Arc::default(),
            Arc::default(),
            file,
        );
    }
    (tier, device)
}
