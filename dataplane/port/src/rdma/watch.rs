//! The thread that reads a device's asynchronous events: one for all servers of this process on that device.

use std::sync::{Arc, Mutex, PoisonError};

use rowmill_verbs::{Context, DeviceWatch, Error, EventCounts};

static WATCHED: Mutex<Vec<(String, usize, DeviceWatch)>> = Mutex::new(Vec::new());

/// A share in the thread of a device.
#[derive(Debug)]
pub(super) struct Watch {
    device: String,
    /// What it said so far.
    pub(super) said: Arc<EventCounts>,
}

impl Watch {
    /// Has the device's events read as long as this lives.
    pub(super) fn of(context: &Context) -> Result<Watch, Error> {
        let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        let name = context.name().to_owned();
        let said = match all.iter_mut().find(|(device, ..)| *device == name) {
            Some((_, shares, watch)) => {
                *shares += 1;
                watch.counts().clone()
            }
            None => {
                let watch = DeviceWatch::start(context)?;
                let said = watch.counts().clone();
                all.push((name.clone(), 1, watch));
                said
            }
        };
        Ok(Watch { device: name, said })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The last share's thread ends under the lock, so that the next one finds the device unwatched.
        let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.iter().position(|(device, ..)| *device == self.device) {
            all[at].1 -= 1;
            if all[at].1 == 0 {
                all.swap_remove(at);
            }
        }
    }
}
