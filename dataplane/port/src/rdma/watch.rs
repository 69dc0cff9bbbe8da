//! The thread that reads a device's asynchronous events: one for all servers of this process on that device.

use std::sync::{Mutex, PoisonError};

use rowmill_verbs::{Context, DeviceWatch, Error};

static WATCHED: Mutex<Vec<(String, usize, DeviceWatch)>> = Mutex::new(Vec::new());

/// A share in the thread of a device.
#[derive(Debug)]
pub(super) struct Watch(String);

impl Watch {
    /// Has the device's events read as long as this lives.
    pub(super) fn of(context: &Context) -> Result<Watch, Error> {
        let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        let name = context.name().to_owned();
        match all.iter_mut().find(|(device, ..)| *device == name) {
            Some((_, shares, _)) => *shares += 1,
            None => all.push((name.clone(), 1, DeviceWatch::start(context)?)),
        }
        Ok(Watch(name))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The last share's thread ends under the lock, so that the next one finds the device unwatched.
        let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.iter().position(|(device, ..)| *device == self.0) {
            all[at].1 -= 1;
            if all[at].1 == 0 {
                all.swap_remove(at);
            }
        }
    }
}
