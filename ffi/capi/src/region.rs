//! Regions.

use std::sync::{Arc, Weak};

use rowmill_client::{ClientError, RegionMemory};

use crate::client::Client;
use crate::error::Error;

/// Memory for answers. It stays mapped until the caller frees it, also when its client is closed.
pub(crate) struct Region {
    client: Weak<Client>,
    pub(crate) region: rowmill_client::Region,
    memory: RegionMemory,
}

impl Region {
    /// Makes and registers one.
    pub(crate) fn create(client: &Arc<Client>, bytes: u64) -> Result<Region, Error> {
        if bytes == 0 {
            return Err(Error::invalid(
                "a region of 0 bytes; rowmill_answer_bytes() tells how many an answer takes",
            ));
        }
        let region = client.hub.region(bytes)?;
        let memory = client.hub.memory(region)?;
        Ok(Region {
            client: Arc::downgrade(client),
            region,
            memory,
        })
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> *mut u8 {
        self.memory.window().as_ptr()
    }

    /// Takes it from the dataplane, as long as there is one.
    pub(crate) fn unregister(&self) -> Result<(), Error> {
        let Some(client) = self.client.upgrade() else {
            return Ok(());
        };
        match client.hub.unregister(self.region) {
            Err(error @ (ClientError::RegionInUse { .. } | ClientError::Forked)) => {
                Err(error.into())
            }
            // Whatever else there is ends with the connection.
            _ => Ok(()),
        }
    }
}
