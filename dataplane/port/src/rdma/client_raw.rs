//! A client that breaks the protocol on purpose: what tests of hostile and faulty clients need, and nobody else.

use rowmill_verbs::Operation;
use rowmill_wire::control::{Control, Rights};

use super::client::RdmaClient;
use super::failure::system;
use crate::calls::unexpected;
use crate::{PortError, RegionId};

impl RdmaClient {
    /// Writes `bytes` to slot 0 of a lane with an immediate of the caller's choice.
    ///
    /// # Errors
    /// As [`ClientPort::submit`](crate::ClientPort::submit).
    pub fn raw_write(&mut self, lane: u16, immediate: u32, bytes: &[u8]) -> Result<(), PortError> {
        let limit = self.limit();
        let sent = self.lanes[usize::from(lane)].write(0, immediate, bytes, limit);
        sent.map_err(|what| self.find_out(lane, what))
    }

    /// Registers memory by any address and key, for the dataplane to read and write.
    ///
    /// # Errors
    /// As [`ClientPort::register`](crate::ClientPort::register).
    pub fn raw_register(
        &mut self,
        bytes: u64,
        address: u64,
        key: u32,
    ) -> Result<RegionId, PortError> {
        let question = Control::RegisterRemote {
            bytes,
            address,
            key,
            rights: Rights::Both,
        };
        match self.call(&question)? {
            Control::Registered { region } => Ok(RegionId(region)),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes a region's memory away from the device without a word to the dataplane, which may be writing to it. `false`
    /// where there is no such region.
    pub fn raw_deregister(&mut self, region: RegionId) -> bool {
        let place = self.regions.get_mut(region.0 as usize);
        place.and_then(Option::take).is_some()
    }

    /// Sends `bytes` as a message on a lane, where only writes are expected.
    ///
    /// # Errors
    /// As [`ClientPort::submit`](crate::ClientPort::submit).
    pub fn raw_send(&mut self, lane: u16, bytes: &[u8]) -> Result<(), PortError> {
        let limit = self.limit();
        let sent = self.lanes[usize::from(lane)].post(Operation::Send, bytes, limit);
        sent.map_err(|what| self.find_out(lane, what))
    }

    /// Moves a lane's queue pair to the error state and tells nobody: what the dataplane sends there is not acknowledged any
    /// more. This side notices when it polls.
    ///
    /// # Errors
    /// [`PortError::Closed`] where the connection has ended before, [`PortError::System`] where the device refuses.
    pub fn raw_fail(&mut self, lane: u16) -> Result<(), PortError> {
        let qp = self.lanes[usize::from(lane)].qp.as_mut();
        let qp = qp.ok_or(PortError::Closed)?;
        qp.fail().map_err(|error| system("failing a lane", error))
    }

    /// From now on no receive of a lane that a status record has consumed is posted again.
    pub fn raw_withhold_receives(&mut self, lane: u16) {
        self.lanes[usize::from(lane)].withholds_receives = true;
    }
}
